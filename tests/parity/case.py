"""A row of the parity table: a tiny random model of transformers, and how to ask it for its scores."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """One option of one family. `kind` says which inputs the model takes and which output is compared."""

    name: str
    model: str
    config: str
    options: dict[str, Any]
    # decoder, bare (a decoder without its head), masked, tag, classify, pool, first (token, of a bare encoder),
    # last (token, of a bare decoder that cannot unembed), encoder-decoder
    kind: str = "decoder"
    takes_positions: bool = False
    paddings: tuple[str, ...] = ("left", "right")
    length: int = 11
    caches: bool = True  # False where scores with a cache differ by definition, in the reference too
    edit_config: Callable[[dict[str, Any]], None] | None = field(default=None, repr=False)
    # Within this, a float64 reference computes exactly what it would round to float32.
    unrounded: Callable[[], AbstractContextManager[None]] = field(default=nullcontext, repr=False)

    def build(self, dtype: torch.dtype) -> Any:
        """The reference, with weights large enough that every part of the model matters."""
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.options)
        config._attn_implementation = "eager"
        network = getattr(transformers, self.model)(config).eval()
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                if "norm" not in name.lower() and parameter.dim() > 1:
                    parameter.normal_(0, 0.15)
                else:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        network.tie_weights()
        return network.to(dtype)

    @property
    def generates(self) -> bool:
        return self.kind in ("decoder", "encoder-decoder")

    def save(self, network: Any, folder: Path) -> Path:
        network.save_pretrained(folder)
        return folder

    def inputs(self, vocab: int, padding: str | None) -> dict[str, Tensor]:
        """ids, and padding on one side of the first text; for two stacks, a target too."""
        generator = torch.Generator().manual_seed(1)
        inputs = {"ids": torch.randint(5, vocab, (3, self.length), generator=generator)}
        if padding:
            real = torch.ones(3, self.length, dtype=torch.bool)
            real[0, slice(0, 4) if padding == "left" else slice(-4, None)] = False
            inputs["padding"] = real
            inputs["ids"] = inputs["ids"].masked_fill(~real, self.options.get("pad_token_id") or 0)
        if self.kind == "encoder-decoder":
            inputs["target"] = torch.randint(5, vocab, (3, self.length - 3), generator=generator)
        return inputs

    @torch.no_grad()
    def reference(self, network: Any, inputs: dict[str, Tensor]) -> Tensor:
        ids, real = inputs["ids"], inputs.get("padding")
        options: dict[str, Any] = {"input_ids": ids}
        if real is not None:
            options["attention_mask"] = real.long()
        if self.kind == "encoder-decoder":
            options["decoder_input_ids"] = inputs["target"]
        elif self.takes_positions and real is not None:
            options["position_ids"] = (real.long().cumsum(-1) - 1).clamp(min=0)
        if self.kind in ("decoder", "encoder-decoder"):
            options["use_cache"] = False
        with self.unrounded() if network.dtype == torch.float64 else nullcontext():
            output = network(**options)
        if self.kind == "bare":
            return output.last_hidden_state @ network.get_input_embeddings().weight.T
        if self.kind == "first":
            return output.last_hidden_state[:, 0]
        if self.kind == "last":
            last = torch.ones_like(ids) if real is None else real.long()
            return output.last_hidden_state[torch.arange(len(ids)), last.cumsum(1).argmax(1)]
        return output.pooler_output if self.kind == "pool" else output.logits
