"""What if attention were computed in another way? The same weights and text, one thing changed, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from pellucid.errors import InputError
from pellucid.kernels.reference import Heads, Key, Matrix, Query, Value, share
from pellucid.kernels.view import View
from pellucid.lens.recipes import Recipe, Text, Values
from pellucid.lens.trace import Step, Trace, read_texts, trace
from pellucid.model import config as c
from pellucid.model.mechanisms import Kernel, Scored
from pellucid.model.sites import sites as sites_of
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model


@dataclass(frozen=True)
class Temperature:
    """Products of queries and keys divided by this too; a position bias is added after it, as in `config.Softmax`."""

    value: float


@dataclass(frozen=True)
class NoScaling:
    """Products of queries and keys as they are."""


@dataclass(frozen=True)
class KeysQueries:
    """K Q' instead of Q K'."""


@dataclass(frozen=True)
class Cosine:
    """The cosine of query and key instead of their product; scale, bias and mask stay."""


@dataclass(frozen=True)
class NegativeSquaredDistance:
    """-|q - k|^2 instead of the product; scale, bias and mask stay."""


@dataclass(frozen=True)
class NormalizedRelu:
    """Positive scores over their sum instead of softmax."""


@dataclass(frozen=True)
class MaskOff:
    """A decoder that sees the future."""


@dataclass(frozen=True)
class MaskOn:
    """A text whose future is hidden; an encoder becomes a decoder, and so do the names of its sites."""


@dataclass(frozen=True)
class PositionsOff:
    """Nothing tells where a token stands, but the mask."""


@dataclass(frozen=True)
class Norm:
    """No norms at all, or the model's own before ("pre") or after ("post") each sub-layer; the final one stays."""

    kind: Literal["identity", "pre", "post"]


Scoring = KeysQueries | Cosine | NegativeSquaredDistance
Change = Temperature | NoScaling | Scoring | NormalizedRelu | MaskOff | MaskOn | PositionsOff | Norm
Share = tuple[str, float, float]


@dataclass(frozen=True)
class Comparison:
    """The same text before and after a change.

    model: the changed model, on the reference kernel, as `explain` takes it.
    predictions: (token or label, share before, share after), of the first text's last token or of the text.
    largest_change: of any probability; of any number of the vector where the head only pools.
    """

    change: Change
    original: Trace
    changed: Trace
    model: Model
    predictions: tuple[Share, ...]
    largest_change: float
    notes: tuple[str, ...] = ()

    def to_json(self, *, values: bool = True) -> dict[str, Any]:
        return {
            "change": {"kind": type(self.change).__name__, **asdict(self.change)},
            "original": self.original.to_json(values=values),
            "changed": self.changed.to_json(values=values),
            "predictions": [
                {"token": token, "before": before, "after": after} for token, before, after in self.predictions
            ],
            "largest_change": self.largest_change,
            "notes": list(self.notes),
        }


@torch.no_grad()
def what_if(
    model: Model, text: Any, change: Change, target: Any = None, *, sites: Sequence[str] | None = None
) -> Comparison:
    """Trace a text as the model is, and with one thing changed.

    K Q', cosine and distance change the self-attention of the last stack, and no cross-attention. The mask is that of
    the decoder. Every other change is one of the config, and concerns all stacks, cross-attention included.
    sites: as `trace` takes them; scores, weights, residual.out and the output unless given.
    """
    own = replace(model, network=model.network.with_kernel("reference"))
    changed = changed_model(model, change)
    first, second = (trace(one, text, target, sites=sites or _shown(one)) for one in (own, changed))
    if isinstance(change, Scoring):
        second = replace(second, steps=tuple(_checked(step, change, changed) for step in second.steps))
    output = "logits" if isinstance(model.config.head, c.Pool) else "probabilities"
    before, after = (_output(run, output, one, text, target) for run, one in ((first, own), (second, changed)))
    shares = side_by_side(model, before, after, read_texts(model, text, target)[-1])
    largest = float((before - after).abs().max())
    return Comparison(change, first, second, changed, shares, largest, _notes(model.config, change))


def changed_model(model: Model, change: Change) -> Model:
    """The same weights on the reference kernel, with one thing changed; refused where they do not allow it."""
    config = model.config if isinstance(change, Scoring) else _changed_config(model.config, change)
    network = _rebuilt(model.network.plain(), config)
    if isinstance(change, Scoring):
        stack = network.decoder or network.encoder
        assert stack is not None
        for block in stack.blocks:
            mechanism = block.attention.mechanism
            if not isinstance(mechanism, Scored):
                raise InputError(f"{config.attention.kind} attention has no score per query and key to change")
            mechanism.kernel = _scored_by(mechanism.kernel, _SCORED[type(change)])
    return replace(model, config=config, network=network)


def side_by_side(model: Model, before: Tensor, after: Tensor, text: Text, top: int = 5) -> tuple[Share, ...]:
    """The likeliest entries of either, the likeliest before the change first."""
    if isinstance(model.config.head, c.Unembed):
        last = text.ids.shape[1] - 1 if text.padding is None else int(text.padding[0].nonzero().max())
        rows = before[0, last].double(), after[0, last].double()
    elif isinstance(model.config.head, c.Classify):
        rows = before[0].double(), after[0].double()
    else:
        return ()
    best = {i for row in rows for i in row.topk(min(top, row.numel())).indices.tolist()}
    ranked = sorted(best, key=lambda i: -float(rows[0][i]))
    return tuple((_name(model, i), float(rows[0][i]), float(rows[1][i])) for i in ranked)


def _name(model: Model, entry: int) -> str:
    if isinstance(model.config.head, c.Classify):
        return model.labels[entry] if entry < len(model.labels) else f"LABEL_{entry}"
    return str(entry) if model.tokenizer is None else model.tokenizer.token(entry)


def _shown(model: Model) -> list[str]:
    """What a comparison shows unless told."""
    ends = ("attention.scores", "attention.weights", "residual.out", "logits", "probabilities")
    pools = isinstance(model.config.head, c.Pool)
    return [name for name in sites_of(model.network) if name.endswith(ends) and not (pools and name == "probabilities")]


def _output(run: Trace, site: str, model: Model, text: Any, target: Any) -> Tensor:
    kept = {step.site: step.full for step in run.steps}
    return kept[site] if site in kept else trace(model, text, target, sites=[site])[site].full


def _notes(config: c.ModelConfig, change: Change) -> tuple[str, ...]:
    if isinstance(change, MaskOff | MaskOn) and isinstance(config.position, c.T5Buckets):
        return ("the buckets of distances change with the mask: half of them are for the future where it is seen",)
    return ()


# --- changes of the config ---


def _changed_config(config: c.ModelConfig, change: Change) -> c.ModelConfig:
    updates: dict[str, Any]
    match change:
        case Temperature() | NoScaling() | NormalizedRelu():
            updates = {"attention": _attention(config, change).model_dump()}
        case MaskOff() | MaskOn():
            updates = _mask(config, change)
        case PositionsOff():
            if isinstance(config.position, c.NoPositions):
                raise InputError("this model has no positions to switch off")
            updates = {"position": c.NoPositions().model_dump()}
        case Norm(kind=kind):
            updates = _norm(config, kind)
        case _:
            raise InputError(f"{change!r} is not a change of the config")
    # Built anew, since a copy would not be checked.
    return c.ModelConfig(**(config.model_dump() | updates))


def _attention(config: c.ModelConfig, change: Temperature | NoScaling | NormalizedRelu) -> c.Attention:
    own = config.attention
    match change, own:
        case Temperature(value=value), _ if not value > 0:
            raise InputError(f"a temperature is larger than 0, not {value}")
        case Temperature(value=value), c.Softmax():
            return own.model_copy(update={"temperature": own.temperature * value})
        case Temperature(value=value), c.Linformer():
            return own.model_copy(update={"scale": config.scale / value})
        case NoScaling(), c.Softmax(temperature=temperature) if config.scale * temperature != 1:
            return c.Softmax(scale=1.0, temperature=temperature)
        case NoScaling(), c.NormalizedRelu() | c.Linformer() if config.scale != 1:
            return own.model_copy(update={"scale": 1.0})
        case NormalizedRelu(), c.Softmax():
            return c.NormalizedRelu(scale=config.scale)
        case NoScaling(), c.Softmax() | c.NormalizedRelu() | c.Linformer():
            raise InputError("the scores of this model are not scaled: there is nothing to leave out")
    raise InputError(f"{type(change).__name__} needs softmax attention, but this model's is {own.kind}")


def _mask(config: c.ModelConfig, change: MaskOff | MaskOn) -> dict[str, Any]:
    hides = config.decoder_blocks > 0 and config.causal
    if isinstance(change, MaskOff):
        if not hides:
            raise InputError("this model hides no future: there is no causal mask to switch off")
        return {"causal": False}
    if hides:
        raise InputError("this model hides the future already")
    turned = {} if config.decoder_blocks else {"encoder_blocks": 0, "decoder_blocks": config.encoder_blocks}
    return {"causal": True, **turned}


def _norm(config: c.ModelConfig, kind: Literal["identity", "pre", "post"]) -> dict[str, Any]:
    if kind not in ("identity", "pre", "post"):
        raise InputError(f"a norm is identity, pre or post, not {kind!r}")
    if isinstance(config.norm, c.Identity):
        raise InputError(f"this model has no norms, so there are no gains and shifts for {kind!r}")
    if kind == "identity":
        return {"norm": c.Identity().model_dump()}
    if kind == config.placement:
        raise InputError(f"the norms of this model are {kind} already")
    # A final norm has weights or it has not: its presence does not follow the placement here.
    return {"placement": kind, "final_norm": config.has_final_norm}


def _rebuilt(network: Transformer, config: c.ModelConfig) -> Transformer:
    """The parameters of a network in a new one; those of parts that are gone are dropped."""
    with torch.device("meta"):
        twin = Transformer(config, kernel="reference")
    wanted = twin.state_dict().keys()
    renamed = {_renamed(name, network.config, config): value for name, value in network.state_dict().items()}
    twin.load_state_dict({name: value for name, value in renamed.items() if name in wanted}, assign=True)
    return twin.train(network.training)


def _renamed(name: str, old: c.ModelConfig, new: c.ModelConfig) -> str:
    if old.placement != new.placement:
        places = {"pre": ".before_", "post": ".after_"}
        name = name.replace(places[old.placement], places[new.placement])
    if old.encoder_blocks and not new.encoder_blocks and name.startswith("encoder."):
        return name.replace("encoder.", "decoder.", 1)
    return name


# --- changes of the scores ---


def _swapped(query: Query, key: Query) -> tuple[Tensor, Tensor]:
    return key, query


def _unit(query: Query, key: Query) -> tuple[Tensor, Tensor]:
    return torch.nn.functional.normalize(query, dim=-1), torch.nn.functional.normalize(key, dim=-1)


def _apart(query: Query, key: Query) -> tuple[Tensor, Tensor]:
    """-|q - k|^2 = 2 q'k - |q|^2 - |k|^2 is a product of longer vectors, so that the kernel stays as it is."""
    one = torch.ones_like(query[..., :1])
    squares = query.square().sum(-1, keepdim=True), key.square().sum(-1, keepdim=True)
    return torch.cat((2 * query, -squares[0], -one), -1), torch.cat((key, one, squares[1]), -1)


_SCORED: dict[type, Callable[[Query, Query], tuple[Tensor, Tensor]]] = {
    KeysQueries: _swapped,
    Cosine: _unit,
    NegativeSquaredDistance: _apart,
}

# The same three for the check of a trace, in float64 and written apart.
_AGAIN: dict[type, Callable[[Query, Query], Matrix]] = {
    KeysQueries: lambda q, k: torch.einsum("bhjd,bhid->bhij", q, k),
    Cosine: lambda q, k: torch.nn.functional.cosine_similarity(q[:, :, :, None], k[:, :, None], dim=-1, eps=1e-24),
    NegativeSquaredDistance: lambda q, k: -(q[:, :, :, None] - k[:, :, None]).square().sum(-1),
}
_FORMULAS = {
    KeysQueries: r"S = \frac{K Q^\top}{\sqrt{d_k}} + B + M",
    Cosine: r"S_{ij} = \frac{1}{\sqrt{d_k}} \frac{q_i \cdot k_j}{|q_i| |k_j|} + B_{ij} + M_{ij}",
    NegativeSquaredDistance: r"S_{ij} = -\frac{|q_i - k_j|^2}{\sqrt{d_k}} + B_{ij} + M_{ij}",
}


def _scored_by(kernel: Kernel, become: Callable[[Query, Query], tuple[Tensor, Tensor]]) -> Kernel:
    """A kernel that takes the products of other vectors; its sites stay."""

    def scored(query: Query, key: Key, value: Value, *, scale: float, view: View) -> Heads:
        heads = query.shape[1]
        left, right = become(query, share(key, heads))
        return kernel(left, right, share(value, heads), scale=scale, view=view)

    return scored


def _checked(step: Step, change: Scoring, model: Model) -> Step:
    """A changed score with its own formula and check; the other steps are computed as before."""
    last = "decoder" if model.config.decoder_blocks else "encoder"
    if not (step.site.startswith(last) and step.site.endswith("attention.scores")):
        return step
    plain, (query, key), kind = step.recipe.again, step.inputs, type(change)

    def again(v: Values) -> Tensor:
        """What the dot product gave, with the difference to the other score put on it: bias and mask stay."""
        q, k = v[query], share(v[key], model.config.heads)
        return plain(v) + model.config.scale * (_AGAIN[kind](q, k) - torch.einsum("bhid,bhjd->bhij", q, k))

    recipe = Recipe(_FORMULAS[kind], step.inputs, again)
    return replace(step, formula=recipe.formula, recipe=recipe)
