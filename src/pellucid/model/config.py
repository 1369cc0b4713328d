"""What a Transformer is, as frozen data. A variant is a type; a combination that cannot be right is refused here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from pellucid.errors import ConfigError

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
Precision = Literal["float32", "float64"]
Pooling = Literal["mean", "max", "first", "last"]


class Part(BaseModel):
    """Frozen data; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(_plainly(error)) from None


# --- attention: how scores become a mixture of values ---


class Softmax(Part):
    """softmax(Q K' scale / temperature); scale is 1/sqrt(head_width) unless given."""

    kind: Literal["softmax"] = "softmax"
    scale: Positive | None = None
    temperature: Positive = 1.0


class NormalizedRelu(Part):
    """relu(Q K' scale), each row divided by its sum."""

    kind: Literal["normalized_relu"] = "normalized_relu"
    scale: Positive | None = None


class Linformer(Part):
    """Softmax over `rank` mixtures of the keys; each mixture is a row of a learned (or fixed random) matrix."""

    kind: Literal["linformer"] = "linformer"
    rank: PositiveInt
    learned: bool = True
    scale: Positive | None = None


class EluPlusOne(Part):
    kind: Literal["elu_plus_one"] = "elu_plus_one"


class Relu(Part):
    kind: Literal["relu"] = "relu"


class PositiveRandom(Part):
    """Random features whose products are exp(q'k scale) in expectation."""

    kind: Literal["positive_random"] = "positive_random"
    count: PositiveInt = 256
    orthogonal: bool = True
    scale: Positive | None = None


Features = Annotated[EluPlusOne | Relu | PositiveRandom, Field(discriminator="kind")]


class Linear(Part):
    """phi(q)'phi(k) in place of exp(q'k), so that time and memory grow linearly with the length."""

    kind: Literal["linear"] = "linear"
    features: Features = EluPlusOne()
    chunk: PositiveInt = 128


Attention = Annotated[Softmax | NormalizedRelu | Linformer | Linear, Field(discriminator="kind")]


# --- position: how a token knows where it stands ---


class NoPositions(Part):
    kind: Literal["none"] = "none"


class Sinusoidal(Part):
    """Sines and cosines added to the embedding, in turn or as two halves."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    base: Positive = 10_000.0
    layout: Literal["interleaved", "half"] = "interleaved"
    precision: Precision = "float64"


class Learned(Part):
    """A learned vector per position, added to the embedding. The first `skip` rows of the table are never read."""

    kind: Literal["learned"] = "learned"
    skip: Annotated[int, Field(ge=0)] = 0


class Relative(Part):
    """A learned score bias per head and distance, shared by all distances beyond max_distance."""

    kind: Literal["relative"] = "relative"
    max_distance: PositiveInt = 128


class T5Buckets(Part):
    """A learned score bias per head and bucket of distances: exact up to half the buckets, then logarithmic."""

    kind: Literal["t5_buckets"] = "t5_buckets"
    buckets: Annotated[int, Field(ge=4)] = 32
    max_distance: PositiveInt = 128


class ALiBi(Part):
    """A fixed score bias per head, proportional to the distance."""

    kind: Literal["alibi"] = "alibi"


class LinearScaling(Part):
    """Every angle divided by factor (position interpolation)."""

    kind: Literal["linear"] = "linear"
    factor: Positive


class NtkScaling(Part):
    """A larger base, so that the slowest pair is stretched by factor and the fastest hardly at all."""

    kind: Literal["ntk"] = "ntk"
    factor: Positive


class DynamicNtkScaling(Part):
    """NTK scaling that grows with the text: none up to original_context, then by factor x (length/original - 1) + 1.

    So past the original context the angles of all tokens depend on the length of the longest text of the batch. A cache
    keeps each key as it was turned when it came, at an earlier length: cached and uncached scores agree only up to the
    original context.
    """

    kind: Literal["dynamic_ntk"] = "dynamic_ntk"
    factor: Positive
    original_context: PositiveInt


class YarnScaling(Part):
    """Slow pairs interpolated, fast ones kept, a ramp between; scores sharpened by attention_factor squared."""

    kind: Literal["yarn"] = "yarn"
    factor: Positive
    original_context: PositiveInt
    fast: Positive = 32.0
    slow: Positive = 1.0
    attention_factor: Positive | None = None
    whole_pairs: bool = True


class Llama3Scaling(Part):
    """Wavelengths beyond original_context / low are interpolated, those under original_context / high are kept."""

    kind: Literal["llama3"] = "llama3"
    factor: Positive
    original_context: PositiveInt
    low: Positive = 1.0
    high: Positive = 4.0


Scaling = Annotated[
    LinearScaling | NtkScaling | DynamicNtkScaling | YarnScaling | Llama3Scaling, Field(discriminator="kind")
]


class Rotary(Part):
    """Pairs of a query's and a key's numbers turned by position x frequency, so that scores see distances.

    precision: angles are exact, or rounded to float32 as released checkpoints were trained with.
    """

    kind: Literal["rotary"] = "rotary"
    base: Positive = 10_000.0
    layout: Literal["interleaved", "half"] = "half"
    fraction: Share = 1.0
    scaling: Scaling | None = None
    precision: Precision = "float64"


Position = Annotated[
    NoPositions | Sinusoidal | Learned | Relative | T5Buckets | ALiBi | Rotary,
    Field(discriminator="kind"),
]
ScoreBias = Relative | T5Buckets | ALiBi


# --- norm, feed-forward, biases, task head ---


class LayerNorm(Part):
    kind: Literal["layer_norm"] = "layer_norm"
    epsilon: Positive = 1e-5
    bias: bool = True


class RMSNorm(Part):
    kind: Literal["rms_norm"] = "rms_norm"
    epsilon: Positive = 1e-6


class Identity(Part):
    kind: Literal["identity"] = "identity"


Norm = Annotated[LayerNorm | RMSNorm | Identity, Field(discriminator="kind")]


class Plain(Part):
    """down(activation(up(x)))"""

    kind: Literal["plain"] = "plain"
    hidden: PositiveInt
    activation: Activation = "relu"


class Gated(Part):
    """down(activation(gate(x)) * up(x))"""

    kind: Literal["gated"] = "gated"
    hidden: PositiveInt
    activation: Activation = "silu"


FeedForward = Annotated[Plain | Gated, Field(discriminator="kind")]


class Biases(Part):
    """Which linear maps have a bias."""

    query: bool = True
    key: bool = True
    value: bool = True
    output: bool = True
    feed_forward: bool = True

    @staticmethod
    def none() -> Biases:
        return Biases(query=False, key=False, value=False, output=False, feed_forward=False)


class Unembed(Part):
    """A score per vocabulary entry and token; `transform` puts a dense layer, activation and norm before it."""

    kind: Literal["unembed"] = "unembed"
    tied: bool = True
    bias: bool = False
    scale: Positive = 1.0
    transform: Activation | None = None


class Tag(Part):
    """A score per label and token."""

    kind: Literal["tag"] = "tag"
    labels: PositiveInt


class Classify(Part):
    """A score per label and text; `hidden` puts a dense layer with that activation before it."""

    kind: Literal["classify"] = "classify"
    labels: PositiveInt
    pooling: Pooling = "first"
    hidden: Literal["tanh", "relu", "gelu"] | None = "tanh"
    bias: bool = True


class Pool(Part):
    """One vector per text; `project` is a dense layer with tanh, `normalize` gives it unit length."""

    kind: Literal["pool"] = "pool"
    pooling: Pooling = "mean"
    project: bool = False
    normalize: bool = False


Head = Annotated[Unembed | Tag | Classify | Pool, Field(discriminator="kind")]


class ModelConfig(Part):
    """A Transformer: an encoder, a decoder, or both, built from the same parts.

    context: the longest text that learned positions or Linformer's projections can take; others have no limit of
      their own and don't need it.
    window: keys further than this are hidden; one number, or one (or None) per block.
    causal: a decoder hides the future; False is for looking at what the mask does.
    query_key_norm: normalise each head's query and key before they are rotated.
    """

    vocab: PositiveInt
    width: PositiveInt
    heads: PositiveInt
    feed_forward: FeedForward
    encoder_blocks: Annotated[int, Field(ge=0)] = 0
    decoder_blocks: Annotated[int, Field(ge=0)] = 0
    key_value_heads: PositiveInt | None = None
    head_width: PositiveInt | None = None
    value_width: PositiveInt | None = None
    context: PositiveInt | None = None
    attention: Attention = Softmax()
    position: Position = Sinusoidal()
    norm: Norm = LayerNorm()
    placement: Literal["pre", "post"] = "pre"
    final_norm: bool | None = None
    query_key_norm: bool = False
    biases: Biases = Biases()
    window: PositiveInt | tuple[PositiveInt | None, ...] | None = None
    causal: bool = True
    scale_embedding: bool = False
    embedding_norm: bool = False
    segments: Annotated[int, Field(ge=0)] = 0
    source_vocab: PositiveInt | None = None
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    head: Head = Unembed()

    @model_validator(mode="after")
    def _can_be_right(self) -> ModelConfig:
        for problem in _problems(self):
            raise ValueError(problem)
        return self

    @property
    def groups(self) -> int:
        """How many key/value heads there are."""
        return self.key_value_heads or self.heads

    @property
    def key_width(self) -> int:
        return self.head_width or self.width // self.heads

    @property
    def values_width(self) -> int:
        return self.value_width or self.key_width

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        mechanism = self.attention.features if isinstance(self.attention, Linear) else self.attention
        chosen = getattr(mechanism, "scale", None)
        temperature = mechanism.temperature if isinstance(mechanism, Softmax) else 1.0
        return (chosen if chosen is not None else self.key_width**-0.5) / temperature

    @property
    def has_final_norm(self) -> bool:
        """Pre-norm leaves the residual stream unnormalised at the end, so it is normalised there unless told."""
        return self.placement == "pre" if self.final_norm is None else self.final_norm

    @property
    def is_encoder_decoder(self) -> bool:
        return self.encoder_blocks > 0 and self.decoder_blocks > 0

    def window_of(self, block: int) -> int | None:
        return self.window[block] if isinstance(self.window, tuple) else self.window


def _problems(config: ModelConfig) -> list[str]:
    checks = (_shape_problems, _position_problems, _mechanism_problems, _head_problems)
    return [problem for check in checks for problem in check(config)]


def _shape_problems(config: ModelConfig) -> list[str]:
    problems = []
    if config.encoder_blocks + config.decoder_blocks == 0:
        problems.append("a Transformer needs blocks: set encoder_blocks, decoder_blocks or both")
    if config.head_width is None and config.width % config.heads:
        problems.append(
            f"width {config.width} is not divisible by heads {config.heads}: "
            "choose another number of heads, or give head_width"
        )
    if config.heads % config.groups:
        problems.append(
            f"heads {config.heads} is not a multiple of key_value_heads {config.groups}: "
            "every key/value head serves the same number of heads"
        )
    depth = max(config.encoder_blocks, config.decoder_blocks)
    if isinstance(config.window, tuple) and len(config.window) != depth:
        problems.append(
            f"window has {len(config.window)} entries for {depth} blocks: give one per block, or one for all"
        )
    if config.source_vocab is not None and not config.is_encoder_decoder:
        problems.append("source_vocab is for encoder-decoders: a single stack has one vocabulary")
    return problems


def _position_problems(config: ModelConfig) -> list[str]:
    position = config.position
    if isinstance(position, Learned) and config.context is None:
        return ["learned positions need context: the number of positions in the table"]
    if isinstance(position, T5Buckets) and position.buckets % 4:
        return [f"T5 buckets must be a multiple of 4 (two directions, two halves), not {position.buckets}"]
    if isinstance(position, T5Buckets) and position.max_distance <= position.buckets // 2:
        return [
            f"T5 max_distance {position.max_distance} with {position.buckets} buckets: half of them hold one distance "
            f"each, so the others need a max_distance of more than {position.buckets // 2}"
        ]
    if isinstance(position, Rotary):
        turned = turned_width(config)
        if turned % 2 or turned == 0:
            return [
                f"rotary positions turn pairs, but {turned} numbers per head are to be turned: "
                "choose an even head_width (or feature count) and fraction"
            ]
        if isinstance(position.scaling, NtkScaling | DynamicNtkScaling) and turned == 2:
            return [
                "NTK scaling stretches the pairs after the first, but only one pair is turned: choose 4 or more numbers"
            ]
    return []


def _mechanism_problems(config: ModelConfig) -> list[str]:
    problems = []
    attention, position = config.attention, config.position
    if isinstance(attention, Linformer):
        if config.decoder_blocks and config.causal:
            problems.append(
                "Linformer cannot be causal: each projected key mixes all positions, so it leaks the future. "
                "Use an encoder, or another attention"
            )
        if config.context is None:
            problems.append("Linformer needs context: its projections have one column per position")
        if isinstance(position, ScoreBias | Rotary):
            problems.append(
                f"{position.kind} positions with Linformer: a projected key mixes all positions, so it has no "
                "distance to a query. Use sinusoidal or learned positions"
            )
    if isinstance(attention, Linear) and isinstance(position, ScoreBias):
        problems.append(
            f"{position.kind} positions with linear attention: a bias on the scores cannot be split into features "
            "of a query and of a key. Use rotary, sinusoidal or learned positions"
        )
    if isinstance(attention, Linear | Linformer) and config.window is not None:
        problems.append(f"window with {attention.kind} attention: its sums run over all keys. Use softmax")
    return problems


def _head_problems(config: ModelConfig) -> list[str]:
    if config.is_encoder_decoder and not isinstance(config.head, Unembed):
        return [f"an encoder-decoder writes text: its head is unembed, not {config.head.kind}"]
    return []


def feature_width(config: ModelConfig) -> int:
    """How many numbers of a query meet a key's: its head width, or its random features in linear attention."""
    if isinstance(config.attention, Linear) and isinstance(config.attention.features, PositiveRandom):
        return config.attention.features.count
    return config.key_width


def turned_width(config: ModelConfig) -> int:
    """How many of them rotary positions turn."""
    return int(feature_width(config) * config.position.fraction) if isinstance(config.position, Rotary) else 0


def _plainly(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        where = ".".join(str(step) for step in problem["loc"])
        seen = f" (got {problem['input']!r})" if problem["type"] != "value_error" else ""
        message = problem["msg"].removeprefix("Value error, ")
        lines.append(f"{where}: {message}{seen}" if where else message)
    return "; ".join(lines)
