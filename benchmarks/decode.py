"""How fast do we write? Tokens per second after the first, against transformers and CTranslate2 in the same run.

On a GPU: bfloat16, compiled, against transformers with its static cache, compiled; and the share of the copy bandwidth.
On a CPU: CPU time, one thread, GPT-2 124M in float32 and int8 against transformers in float32, and a Marian-base shape
in int8 against CTranslate2's int8. Contestants of a row are timed in turns, and the medians compared. Weights are
random: no text ends early. A row is printed, and written to the record, as soon as it is there.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.record import record
from pellucid.generation.decode import generate
from pellucid.generation.request import Beams, Run, Stop
from pellucid.generation.stats import copy_bandwidth
from pellucid.model.config import ModelConfig, Plain, Sinusoidal
from pellucid.model.presets import gpt2, preset
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model, Origin

START, END = 0, 1


@dataclass(frozen=True)
class Row:
    """A shape, what is asked of it, and the ratio to reach."""

    name: str
    config: ModelConfig
    batch: int
    prompt: int
    tokens: int
    beams: int = 1
    target: float = 1.0


def marian_base() -> ModelConfig:
    """The shape of OPUS-MT's models."""
    return ModelConfig(
        vocab=58_101,
        width=512,
        heads=8,
        encoder_blocks=6,
        decoder_blocks=6,
        feed_forward=Plain(hidden=2048, activation="silu"),
        position=Sinusoidal(layout="half", precision="float32"),
        placement="post",
        scale_embedding=True,
    )


GPU_ROWS = [
    Row("llama-1b, batch 1", preset("llama-3.2-1b"), 1, 64, 256, target=2.5),
    Row("llama-1b, batch 32", preset("llama-3.2-1b"), 32, 64, 256, target=2.5),
    Row("gpt2-124m, batch 1", gpt2(12, 768, 12), 1, 64, 256, target=2.0),
    Row("marian-base, batch 32, 4 beams", marian_base(), 32, 32, 64, beams=4, target=4.0),
]
CPU_ROWS = [
    Row("gpt2-124m, batch 1", gpt2(12, 768, 12), 1, 32, 33, target=1.0),
    Row("marian-base, batch 1, 4 beams", marian_base(), 1, 32, 33, beams=4, target=0.5),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--row", action="append", help="only rows whose name holds this (default: all)")
    parser.add_argument("--kernel", choices=["grouped", "fused"], default="grouped", help="of our compiled step")
    parser.add_argument("--joins", choices=["auto", "none", "projections", "all"], default="auto", help="likewise")
    parser.add_argument("--alone", action="store_true", help="without the peers")
    parser.add_argument("--record", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
        os.environ["OMP_NUM_THREADS"] = "1"
    found: list[dict[str, Any]] = []
    for row in GPU_ROWS if options.device == "cuda" else CPU_ROWS:
        if options.row and not any(part in row.name for part in options.row):
            continue
        found += compare(row, options)
        if options.record:
            record(options.record, {"rows": found})


def compare(row: Row, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Build, warm up and time all contestants of a row; print and return a line for each."""
    print(f"{row.name}: prompt {row.prompt}, {row.tokens} tokens", flush=True)
    runs: dict[str, Callable[[int], object]] = {}
    for name, build in contestants(row, options).items():
        try:
            start = time.perf_counter()
            runs[name] = build()
            for tokens in (1, row.tokens, row.tokens):
                runs[name](tokens)
            print(f"  {name}: ready after {time.perf_counter() - start:.1f} s", flush=True)
        except Exception as error:  # a peer that cannot run this shape is a result too
            runs.pop(name, None)
            print(f"  {name}: cannot run: {type(error).__name__}: {str(error).splitlines()[0][:150]}", flush=True)
            if name.startswith("pellucid"):
                raise
    return report(row, in_turns(runs, row, options), options)


def contestants(row: Row, options: argparse.Namespace) -> dict[str, Callable[[], Callable[[int], object]]]:
    gpu = options.device == "cuda"
    dtype = torch.bfloat16 if gpu else torch.float32
    built: dict[str, Callable[[], Callable[[int], object]]] = {
        "pellucid": lambda: ours(row, options, dtype, Run(kernel=options.kernel, joins=options.joins))
    }
    if not gpu:
        built["pellucid int8"] = lambda: ours(row, options, dtype, Run(quantize="int8"))
    if not options.alone:
        built["transformers"] = lambda: transformers_run(row, options.device, dtype)
        if not gpu and row.config.is_encoder_decoder:
            built["ctranslate2 int8"] = lambda: ctranslate2_run(row)
    return built


def in_turns(runs: dict[str, Callable[[int], object]], row: Row, options: argparse.Namespace) -> dict[str, float]:
    """Seconds per step after the first: those of all tokens, less those of a run that ends after one."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.repeats):
        for name, run in runs.items():
            one, all_tokens = (seconds(partial(run, tokens), options.device) for tokens in (1, row.tokens))
            times[name].append((all_tokens - one) / (row.tokens - 1))
    return {name: statistics.median(samples) for name, samples in times.items()}


def seconds(call: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        return time.perf_counter() - start
    start = time.process_time()
    call()
    return time.process_time() - start


def report(row: Row, steps: dict[str, float], options: argparse.Namespace) -> list[dict[str, Any]]:
    bandwidth = copy_bandwidth(torch.device(options.device))
    size = 2 if options.device == "cuda" else 4
    read = decoder_parameters(row.config) * size
    peers = [name for name in steps if not name.startswith("pellucid")]
    lines = []
    for name, step in steps.items():
        line: dict[str, Any] = {"row": row.name, "contestant": name, "tokens_per_second": round(row.batch / step, 2)}
        if name in ("pellucid", "transformers"):
            line["share_of_copy_bandwidth"] = round(read / step / bandwidth, 4)
        if name.startswith("pellucid"):
            line["ratio"] = {peer: round(steps[peer] / step, 3) for peer in peers}
        shown = "".join(f"  {ratio:.2f} x {peer}" for peer, ratio in line.get("ratio", {}).items())
        share = line.get("share_of_copy_bandwidth")
        more = "" if share is None else f"  {share:6.1%} of {bandwidth / 1e9:.0f} GB/s"
        print(f"  {name:18} {row.batch / step:10.1f} tokens/s  {step * 1e3:8.3f} ms/step{more}{shown}", flush=True)
        lines.append(line | {"prompt": row.prompt, "tokens": row.tokens, "target": row.target})
    return lines


def decoder_parameters(config: ModelConfig) -> int:
    with torch.device("meta"):
        network = Transformer(config)
    assert network.decoder is not None
    return sum(p.numel() for p in network.decoder.parameters()) + config.vocab * config.width


# --- the contestants ---


def ours(row: Row, options: argparse.Namespace, dtype: torch.dtype, run: Run) -> Callable[[int], object]:
    with torch.device("meta"):
        network = Transformer(row.config)
    network = network.to_empty(device=options.device).to(dtype).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0, 0.02) if parameter.dim() > 1 else parameter.fill_(1.0)
    origin = Origin(config={"decoder_start_token_id": START, "eos_token_id": END, "pad_token_id": START})
    model = Model(row.config, network, origin=origin)
    prompts = token_ids(row).tolist()

    def write(tokens: int) -> object:
        # Beams may end; with the model's own end left out, they never do.
        return generate(model, prompts, max_tokens=tokens, beams=Beams(row.beams), stop=Stop(model_end=False), run=run)

    return write


def token_ids(row: Row) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randint(2, row.config.vocab, (row.batch, row.prompt), generator=draw)


def transformers_run(row: Row, device: str, dtype: torch.dtype) -> Callable[[int], object]:
    model = transformers_model(row.config).to(device, dtype).eval()
    model.generation_config.eos_token_id = None  # so that no text ends early
    ids = token_ids(row).to(device)
    # Compiled with a static cache: what its guide calls fastest. Beams cannot be compiled there.
    static = {"cache_implementation": "static"} if device == "cuda" and row.beams == 1 else {}

    def write(tokens: int) -> object:
        with torch.no_grad():
            return model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                num_beams=row.beams,
                do_sample=False,
                pad_token_id=START,
                **static,
            )

    return write


def transformers_model(config: ModelConfig) -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    hidden = config.feed_forward.hidden
    torch.manual_seed(0)
    if config.is_encoder_decoder:
        sizes = {f"{s}_{n}": v for s in ("encoder", "decoder") for n, v in _marian_sizes(config).items()}
        return transformers.MarianMTModel(
            transformers.MarianConfig(
                vocab_size=config.vocab,
                d_model=config.width,
                activation_function="swish",
                scale_embedding=True,
                max_position_embeddings=512,
                pad_token_id=START,
                eos_token_id=END,
                decoder_start_token_id=START,
                forced_eos_token_id=None,
                **sizes,
            )
        )
    if config.position.kind == "rotary":
        return transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=config.vocab,
                hidden_size=config.width,
                num_hidden_layers=config.decoder_blocks,
                num_attention_heads=config.heads,
                num_key_value_heads=config.groups,
                intermediate_size=hidden,
                tie_word_embeddings=True,
                rope_theta=500_000.0,
                bos_token_id=START,
                eos_token_id=END,
            )
        )
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(bos_token_id=START, eos_token_id=END))


def _marian_sizes(config: ModelConfig) -> dict[str, int]:
    return {"layers": config.decoder_blocks, "attention_heads": config.heads, "ffn_dim": config.feed_forward.hidden}


def ctranslate2_run(row: Row) -> Callable[[int], object]:
    """The same shape through CTranslate2's own converter, with words that stand for ids."""
    import ctranslate2
    from ctranslate2.converters.transformers import MarianMTLoader

    model = transformers_model(row.config)
    # CTranslate2 leaves out the last row, which is the padding token's in released models.
    words = ["</s>", "<unk>", *(f"w{place}" for place in range(2, row.config.vocab - 1))]
    loader = MarianMTLoader()
    spec = loader.get_model_spec(model)
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.decoder_start_token = "</s>"
    spec.validate()
    spec.optimize(quantization="int8")
    folder = tempfile.mkdtemp()
    spec.save(folder)
    translator = ctranslate2.Translator(folder, device="cpu", compute_type="int8", intra_threads=1, inter_threads=1)
    sources = [[f"w{place}" for place in ids] for ids in token_ids(row).clamp(max=row.config.vocab - 2).tolist()]

    def write(tokens: int) -> object:
        return translator.translate_batch(
            sources, beam_size=row.beams, max_decoding_length=tokens, min_decoding_length=tokens
        )

    return write


if __name__ == "__main__":
    main()
