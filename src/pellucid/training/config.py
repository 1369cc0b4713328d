"""A training run as frozen data: unknown keys are refused, every default is visible. `runfile.py` reads the TOML."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from pellucid.errors import ConfigError
from pellucid.lora.config import Lora
from pellucid.model.config import Classify, ModelConfig, Part, Tag
from pellucid.model.mechanisms import KernelName
from pellucid.model.presets import preset

Fraction = Annotated[float, Field(ge=0, lt=1)]
BleuTokens = Literal["13a", "char", "zh", "intl", "none"]


# --- data: how files become documents ---


class Text(Part):
    """Plain text, gzip or not: a document per file, per line, or between lines that are the separator."""

    kind: Literal["text"] = "text"
    separator: str | None = None
    lines: bool = False


class Fields(Part):
    """Which keys or columns hold what the task needs."""

    text: str = "text"
    source: str = "source"
    target: str = "target"
    label: str = "label"
    words: str = "words"
    labels: str = "labels"


class JsonLines(Fields):
    """An object per line."""

    kind: Literal["jsonl"] = "jsonl"


class Parquet(Fields):
    """Columns; needs pyarrow."""

    kind: Literal["parquet"] = "parquet"


class Tsv(Part):
    """Columns with a TAB between them, counted from 0: source and target, or a text (source) and its label (target)."""

    kind: Literal["tsv"] = "tsv"
    source: NonNegativeInt = 0
    target: NonNegativeInt = 1


class Parallel(Part):
    """Two files whose lines belong together: the paths of the run, with each of these endings."""

    kind: Literal["parallel"] = "parallel"
    source: str = ".en"
    target: str = ".de"


class Conll(Part):
    """A word per line, an empty line between sentences; columns are counted from 0, -1 is the last."""

    kind: Literal["conll"] = "conll"
    word: int = 0
    label: int = -1


class ConllU(Part):
    """Universal Dependencies; spaces between words are as the file says."""

    kind: Literal["conllu"] = "conllu"
    label: Literal["upos", "xpos", "deprel"] = "upos"


Format = Annotated[Text | JsonLines | Parquet | Tsv | Parallel | Conll | ConllU, Field(discriminator="kind")]


class Data(Part):
    """train, valid: files, relative to `root`, which is relative to the run file.

    holdout: the share of the training documents that validates where there are no such files: those whose first text
      falls there by its hash, so that equal sources stay together; or the last ones ("end"; of one text, its end).
    broken: the largest share of rows that may be unreadable.
    lowercase: of all texts. cache: where tokenised data is kept for other runs too, relative to where one is.
    """

    train: tuple[str, ...]
    valid: tuple[str, ...] = ()
    format: Format = Text()
    root: str = "."
    holdout: Fraction = 0.0
    holdout_by: Literal["hash", "end"] = "hash"
    broken: Fraction = 0.01
    lowercase: bool = False
    cache: str | None = None


# --- tokenizer ---


class Characters(Part):
    kind: Literal["characters"] = "characters"


class Bytes(Part):
    kind: Literal["bytes"] = "bytes"


class BytePairs(Part):
    """Byte-pair encoding trained on the data. words: pieces of words and of punctuation, without the spaces."""

    kind: Literal["bpe"] = "bpe"
    vocab: PositiveInt = 4096
    words: bool = False


class Given(Part):
    """That of a folder, or a tokenizer.json; nothing: that of the model that is fine-tuned.

    start, end, mask: which of its tokens mark the beginning and the end of a text, and what is hidden.
    """

    kind: Literal["given"] = "given"
    path: str | None = None
    start: str | None = None
    end: str | None = None
    mask: str | None = None


TokenizerPart = Annotated[Characters | Bytes | BytePairs | Given, Field(discriminator="kind")]


# --- task ---


class LanguageModel(Part):
    """The next token. packing: windows of one stream, which see across documents; documents side by side in a row that
    don't see each other; or a row each, padded.
    """

    kind: Literal["language_model"] = "language_model"
    packing: Literal["stream", "documents", "padded"] = "documents"


class MaskedLanguageModel(Part):
    """Hidden tokens: a share of all, of which 80 % are masked, 10 % replaced and 10 % kept."""

    kind: Literal["masked_language_model"] = "masked_language_model"
    share: Annotated[float, Field(gt=0, lt=1)] = 0.15


class Translation(Part):
    """The target's next token, given the source and the target until there (teacher forcing)."""

    kind: Literal["translation"] = "translation"
    smoothing: Fraction = 0.1


class Tagging(Part):
    """A label per token. pieces: all pieces of a word learn its label, or the first alone; scores count words."""

    kind: Literal["tagging"] = "tagging"
    pieces: Literal["all", "first"] = "all"
    smoothing: Fraction = 0.0


class Classification(Part):
    kind: Literal["classification"] = "classification"
    smoothing: Fraction = 0.0


Task = Annotated[
    LanguageModel | MaskedLanguageModel | Translation | Tagging | Classification, Field(discriminator="kind")
]


# --- how to learn ---


class Batch(Part):
    """tokens: of a step, over all processes, padding included; a mean over all of them is what is learned from.

    micro: of one forward pass, at most; it changes memory, never the result. context: of a row, at most.
    multiple: rows are padded to a multiple of this, so that fewer shapes are compiled.
    """

    tokens: PositiveInt = 16_384
    micro: PositiveInt | None = None
    context: PositiveInt = 256
    multiple: PositiveInt = 1


class Optimizer(Part):
    """AdamW; decay is for matrices alone. clip: the largest norm of a gradient; 0 is no limit.

    average: the weights that are evaluated and written are a running mean that keeps this share of itself each step.
    """

    rate: PositiveFloat = 1e-3
    decay: NonNegativeFloat = 0.1
    beta1: Fraction = 0.9
    beta2: Fraction = 0.98
    epsilon: PositiveFloat = 1e-8
    clip: NonNegativeFloat = 1.0
    average: Fraction = 0.0


class Schedule(Part):
    """The rate rises for `warmup` steps, then falls to `floor` x rate; inverse_sqrt falls as 1/sqrt(step) for ever."""

    kind: Literal["cosine", "linear", "inverse_sqrt", "constant"] = "cosine"
    steps: PositiveInt
    warmup: NonNegativeInt = 100
    floor: Annotated[float, Field(ge=0, le=1)] = 0.1


class Evaluation(Part):
    """every: steps; 0 is only at the end. batches: of the validation, at most; 0 is all.

    best: the model that is written is the best of those evaluated, not the last: by accuracy where there are labels, by
      entity F1 where they name entities, and by the lowest loss for other tasks.
    translate: so many held-out sentences in the end, for BLEU and chrF; 0 is none. bleu_tokens: how sacreBLEU splits.
    length_penalty: of beams, above 0 favours long translations.
    """

    every: NonNegativeInt = 250
    batches: NonNegativeInt = 0
    best: bool = False
    translate: NonNegativeInt = 0
    beams: PositiveInt = 1
    length_penalty: FiniteFloat = 1.0
    bleu_tokens: BleuTokens = "13a"


class Record(Part):
    """Every head's entropy, sink, stable and effective rank at `points` steps, close together at first.

    tokens: of the validation, that they are measured on.
    """

    points: NonNegativeInt = 0
    tokens: PositiveInt = 128


class Compute(Part):
    """precision: bfloat16 is autocast. recompute: activations again in the backward pass, for memory.

    join: queries, keys and values in one product. chunk: rows of logits at a time; 0 is by size.
    strategy: under torchrun, whole copies (ddp) or shards (fsdp).
    """

    device: str = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    recompute: bool = False
    join: bool = True
    kernel: KernelName = "fused"
    strategy: Literal["ddp", "fsdp"] = "ddp"
    chunk: NonNegativeInt = 0
    threads: NonNegativeInt = 0


class Output(Part):
    """folder: relative to where the command is called. checkpoint: every so many steps. keep: so many of them.

    weights: the model is written in this. merge: of a run with LoRA, write the whole model too, not the adapter alone.
    """

    folder: str
    checkpoint: PositiveInt = 250
    keep: PositiveInt = 2
    log: PositiveInt = 10
    weights: Literal["float32", "bfloat16"] = "float32"
    merge: bool = False


class RunConfig(Part):
    """model: a preset's name, or the keys of a ModelConfig (`preset` is one of them, and gives the others); none where
    a model is fine-tuned.

    Its vocabulary is the tokenizer's unless given, and its labels are the data's.
    lora: fine-tune by an adapter; the model's own weights stay as they are.
    """

    task: Task
    data: Data
    schedule: Schedule
    output: Output
    model: str | dict[str, Any] | None = None
    tokenizer: TokenizerPart = BytePairs()
    batch: Batch = Batch()
    optimizer: Optimizer = Optimizer()
    evaluation: Evaluation = Evaluation()
    record: Record = Record()
    compute: Compute = Compute()
    lora: Lora | None = None
    seed: NonNegativeInt = 0

    @model_validator(mode="after")
    def _fits(self) -> RunConfig:
        for problem in _problems(self):
            raise ValueError(problem)
        return self

    def model_config_for(self, vocab: int, labels: int = 0) -> ModelConfig:
        """The model of this run, once the tokenizer and the labels are known."""
        if self.model is None:
            raise ConfigError(
                "the run file names no model: add one, or fine-tune with `pellucid finetune MODEL RUN.toml`"
            )
        given = {"preset": self.model} if isinstance(self.model, str) else dict(self.model)
        base = preset(str(given.pop("preset"))).model_dump() if "preset" in given else {}
        if base:
            base.pop("vocab")
        parts: dict[str, Any] = {"vocab": vocab, "context": self.batch.context, **base, **given}
        return ModelConfig(**parts | self.head_for(parts.get("head"), labels))

    def head_for(self, head: Any, labels: int) -> dict[str, Any]:
        """The task's head in place of another."""
        if isinstance(self.task, Tagging):
            return {"head": Tag(labels=max(labels, 1))}
        if isinstance(self.task, Classification):
            own = head.model_dump() if isinstance(head, Classify) else head if isinstance(head, dict) else {}
            kept = own if own.get("kind") == "classify" else {}
            return {"head": Classify(**{**kept, "labels": max(labels, 1)})}
        return {}


def _problems(run: RunConfig) -> list[str]:
    return [
        *_data_problems(run),
        *_lora_problems(run),
        *([] if run.model is None else model_problems(run, run.model_config_for(vocab=10**6))),
    ]


def model_problems(run: RunConfig, model: ModelConfig) -> list[str]:
    """What keeps a model from this run."""
    kind, task = run.task.kind, run.task
    wanted = {
        "language_model": ("a decoder alone", model.decoder_blocks > 0 and model.encoder_blocks == 0),
        "translation": ("an encoder and a decoder", model.is_encoder_decoder),
    }.get(kind, ("an encoder alone", model.encoder_blocks > 0 and model.decoder_blocks == 0))
    problems = []
    if not wanted[1]:
        problems.append(
            f"the task {kind} is for {wanted[0]}, but the model has {model.encoder_blocks} encoder and "
            f"{model.decoder_blocks} decoder blocks"
        )
    if isinstance(task, LanguageModel) and task.packing == "documents" and model.attention.kind == "linear":
        problems.append('linear attention sums over a whole row: set task.packing to "padded" (or "stream")')
    limited = model.position.kind == "learned" or model.attention.kind == "linformer"
    if limited and (model.context or 0) < run.batch.context:
        problems.append(f"the model has {model.context} positions, but batch.context is {run.batch.context}: lower it")
    if isinstance(task, LanguageModel | MaskedLanguageModel) and model.head.kind != "unembed":
        problems.append(
            f"the task {kind} scores the vocabulary: set the model's head to unembed, not {model.head.kind}"
        )
    return problems


def _data_problems(run: RunConfig) -> list[str]:
    problems, can = [], _NEEDS[run.data.format.kind]
    if run.evaluation.translate and run.task.kind != "translation":
        problems.append(f"evaluation.translate is for the task translation, not {run.task.kind}: leave it away")
    if run.task.kind not in can:
        problems.append(
            f"{run.data.format.kind} data cannot serve the task {run.task.kind}; it can serve {', '.join(can)}"
        )
    if run.batch.tokens < run.batch.context:
        problems.append(f"batch.tokens {run.batch.tokens} is less than one row of batch.context {run.batch.context}")
    if run.batch.micro is not None and run.batch.micro < run.batch.context:
        problems.append(f"batch.micro {run.batch.micro} is less than one row of batch.context {run.batch.context}")
    return problems


def _lora_problems(run: RunConfig) -> list[str]:
    problems = []
    if run.lora is not None and run.compute.strategy == "fsdp":
        problems.append(
            "compute.strategy is fsdp, which shards whole weights, but with lora they stay as they are: set it to ddp"
        )
    if run.lora is None and run.output.merge:
        problems.append("output.merge is for a run with lora: add [lora], or leave merge away")
    return problems


_ANY = ("language_model", "masked_language_model", "translation", "tagging", "classification")
_NEEDS = {
    "text": _ANY[:2],
    "jsonl": _ANY,
    "parquet": _ANY,
    "tsv": ("translation", "classification"),
    "parallel": ("translation",),
    "conll": ("tagging",),
    "conllu": ("tagging",),
}
