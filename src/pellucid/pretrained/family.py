"""A checkpoint family: how its config reads as ours, and the table of its tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pellucid.errors import CheckpointError, PellucidError
from pellucid.model.config import Activation, Learned, Linformer, ModelConfig, Pool
from pellucid.pretrained.table import Row

T = TypeVar("T")
_MISSING: Any = object()

# Where a checkpoint came from, how it was trained, how to sample from it: nothing that changes what it computes.
HARMLESS = frozenset(
    {
        "_name_or_path",
        "_attn_implementation_autoset",
        "_commit_hash",
        "architectures",
        "auto_map",
        "model_type",
        "transformers_version",
        "torch_dtype",
        "dtype",
        "task_specific_params",
        "finetuning_task",
        "problem_type",
        "label2id",
        "id2label",
        "num_labels",
        "use_cache",
        "return_dict",
        "output_hidden_states",
        "output_attentions",
        "torchscript",
        "is_encoder_decoder",
        "tokenizer_class",
        "prefix",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "sep_token_id",
        "cls_token_id",
        "mask_token_id",
        "unk_token_id",
        "decoder_start_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "initializer_range",
        "initializer_factor",
        "init_std",
        "gradient_checkpointing",
        "chunk_size_feed_forward",
        "pretraining_tp",
        "pruned_heads",
        "max_length",
        "min_length",
        "do_sample",
        "early_stopping",
        "num_beams",
        "num_beam_groups",
        "diversity_penalty",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        "repetition_penalty",
        "length_penalty",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "bad_words_ids",
        "num_return_sequences",
        "output_scores",
        "return_dict_in_generate",
        "remove_invalid_values",
        "exponential_decay_length_penalty",
        "suppress_tokens",
        "begin_suppress_tokens",
        "tf_legacy_loss",
        "use_bfloat16",
        "_num_labels",
        "output_past",
        "line_by_line",
        "unsloth_fixed",
        "unsloth_version",
    }
)

# Dropout, under whatever name: a model that is opened does not drop anything.
DROPOUT = re.compile(r"\w*(dropout|pdrop|layerdrop)\w*")

# Their words for how many blocks there are. A block has tensors, so a file bounds these before anyone counts to them.
DEPTHS = {"n_layer", "n_layers", "num_layers", "num_hidden_layers", "num_decoder_layers"} | {
    "encoder_layers",
    "decoder_layers",
}

# Their words for activations, as ours. The first of several words for one is the one that we write.
ACTIVATIONS: dict[str, Activation] = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


def activation_word(activation: Activation) -> str:
    return next(word for word, ours in ACTIVATIONS.items() if ours == activation)


class ConfigReader:
    """A config.json that must be read to the end: a key that nobody asked for is refused by `finish`.

    tensors: the names in the file, as the table spells them, where there is a file.
    """

    def __init__(self, values: dict[str, Any], tensors: Collection[str] | None = None) -> None:
        self.values, self.tensors = values, tensors
        self._read: set[str] = set(HARMLESS)

    def take(self, key: str, kind: type[T], default: T | None = _MISSING) -> T:
        """The value of a key, which must be of this kind; null counts as missing."""
        self._read.add(key)
        value = self.values.get(key)
        if value is None:
            if default is _MISSING:
                raise CheckpointError(f"config.json has no {key!r}, which must be {_a(kind)}: is the file complete?")
            return default  # type: ignore[return-value]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise CheckpointError(f"config.json says {key} = {value!r}, but it must be {_a(kind)}")
        if key in DEPTHS and isinstance(value, int) and self.tensors is not None and value > len(self.tensors):
            raise CheckpointError(
                f"config.json says {key} = {value}, but the checkpoint has only {len(self.tensors)} tensors"
            )
        return value

    def optional(self, key: str, kind: type[T]) -> T | None:
        return self.take(key, kind, None)

    def expect(self, key: str, *allowed: object) -> None:
        """If the key is there, it must have one of these values: we build nothing else."""
        self._read.add(key)
        if key in self.values and self.values[key] not in allowed:
            wanted = " or ".join(repr(value) for value in allowed)
            raise CheckpointError(
                f"config.json says {key} = {self.values[key]!r}, but only {wanted} can be built: "
                "this checkpoint computes something else"
            )

    def choose(self, key: str, table: dict[str, T], default: str) -> T:
        """Our word for their word."""
        word = self.take(key, str, default)
        if word not in table:
            raise CheckpointError(f"config.json says {key} = {word!r}, but only {', '.join(table)} can be built")
        return table[word]

    @property
    def labels(self) -> int:
        """How many labels a classification head has."""
        names = self.values.get("id2label")
        return len(names) if isinstance(names, dict) else self.take("num_labels", int, 2)

    def holds(self, tensor: str, *, without_file: bool) -> bool:
        """Whether the file has this tensor: for what some configs leave open."""
        return without_file if self.tensors is None else tensor in self.tensors

    def ignore(self, *keys: str) -> None:
        """Keys that cannot change what the model computes: dropout, initialisation, and the like."""
        self._read.update(keys)

    def finish(self) -> None:
        unknown = sorted(key for key in self.values if key not in self._read and not DROPOUT.fullmatch(key))
        if unknown:
            shown = ", ".join(f"{key} = {self.values[key]!r}" for key in unknown)
            raise CheckpointError(
                f"config.json has keys that are not known and could change what the model computes: {shown}. "
                "If one of them does not, remove it from the file"
            )


@dataclass(frozen=True)
class Family:
    """One family of checkpoints.

    read: their config, and the name of their class ("" where the config gives none), as ours.
    write: ours as theirs, as far as this family has words for it; `express` checks that nothing was lost.
    classes: the name of their class for each kind of head.
    rows: the table for a config, names as their own classes write them.
    prefix: what the base model's names start with; a file of the bare base model lacks it.
    ignored: patterns of tensors that hold nothing learned (masks, counters).
    spare: patterns of tensors of other heads, which a file may bring; not used, but written back on export.
    renamed: patterns of names in older files, and today's names.
    aliases: tensors that repeat another one; they may be missing, and must be equal where they are not.
    """

    name: str
    read: Callable[[ConfigReader, str], ModelConfig]
    write: Callable[[ModelConfig], dict[str, Any]]
    classes: dict[str, str]
    rows: Callable[[ModelConfig], Iterable[Row]]
    prefix: str = ""
    ignored: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    renamed: dict[str, str] = field(default_factory=dict)
    aliases: Callable[[ModelConfig], dict[str, str]] = field(default=lambda config: {})

    def express(self, config: ModelConfig, labels: int = 0) -> dict[str, Any] | None:
        """Their config for ours, or None where they cannot say it: written, read back and compared."""
        if config.head.kind not in self.classes:
            return None
        try:
            written = self.write(config) | {"architectures": [self.classes[config.head.kind]]}
            if labels:
                written["id2label"] = {str(label): f"LABEL_{label}" for label in range(labels)}
            back = self.read(ConfigReader(written), self.classes[config.head.kind])
        except (PellucidError, KeyError, AttributeError, AssertionError):
            return None
        if isinstance(config.head, Pool) and not config.head.project:
            back = back.model_copy(update={"head": config.head})  # said in files beside the config: pooling.py
        return written if _spelled_out(back) == _spelled_out(config) else None

    def ignores(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)

    def spares(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.spare)

    def today(self, name: str) -> str:
        for pattern, replacement in self.renamed.items():
            name = re.sub(pattern, replacement, name)
        return name


def _spelled_out(config: ModelConfig) -> ModelConfig:
    """With what follows from the rest written out, and without what no file says or no score depends on."""
    limited = isinstance(config.position, Learned) or isinstance(config.attention, Linformer)
    blocks = range(max(config.encoder_blocks, config.decoder_blocks))
    return config.model_copy(
        update={
            "key_value_heads": config.groups,
            "head_width": config.key_width,
            "value_width": config.values_width,
            "final_norm": config.has_final_norm,
            "window": tuple(config.window_of(block) for block in blocks),
            "context": config.context if limited else None,
            "dropout": 0.0,
        }
    )


def _a(kind: type) -> str:
    return {int: "a whole number", float: "a number", str: "a text", bool: "true or false", list: "a list"}.get(
        kind, f"a {kind.__name__}"
    )
