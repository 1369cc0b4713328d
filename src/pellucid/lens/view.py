"""What every rendering of a trace shares: which slices are shown, what their rows are called, what an error may be."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pellucid import axes
from pellucid.lens.trace import Step, Trace

Matrix = NDArray[np.floating]
Hidden = NDArray[np.bool_]

_PLACES = (axes.TOKEN, axes.QUERY, axes.KEY)
# The largest error of a step that only rounds: promised in float32 and float64, a few last places elsewhere.
_ALLOWED = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class Slice:
    """One matrix of a step: of one head, or of the whole value; `hidden` marks what the mask hides."""

    name: str
    values: Matrix
    hidden: Hidden


def allowed(step: Step) -> float:
    """The error under which a step counts as verified."""
    return _ALLOWED.get(step.value.dtype, 1e-5)


def readable(token: str) -> str:
    """A token as one visible word: spaces, line ends, control and direction characters as Python writes them."""
    return "".join(_sign(letter) for letter in token) or "∅"


def _sign(letter: str) -> str:
    if letter == " ":
        return "␣"
    hidden = unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    return letter.encode("unicode_escape").decode() if hidden else letter


def is_whole(step: Step) -> bool:
    """Whether no heads or tokens were left out: only then are places in the value places in the text."""
    return step.value.shape == step.full.shape


def has_two_texts(trace: Trace) -> bool:
    """Whether an encoder reads another text than the one that the trace names."""
    names = {name for step in trace.steps for name in (step.site, *step.inputs)}
    return any(".cross." in name or name.startswith(("encoder.embedding", "encoder.final")) for name in names)


def names_tokens(trace: Trace, step: Step, axis: int) -> bool:
    """Whether this axis of a step's value runs over the tokens of the trace."""
    name = step.axes[axis]
    if name not in _PLACES or not is_whole(step) or step.value.shape[axis] != len(trace.tokens):
        return False
    of_source = step.site.startswith("encoder.") or (".cross." in step.site and name == axes.KEY)
    return not (of_source and has_two_texts(trace))


def labels(trace: Trace, step: Step, axis: int) -> list[str]:
    """What the places along an axis are called: tokens where they are, numbers elsewhere."""
    if names_tokens(trace, step, axis):
        return [readable(token) for token in trace.tokens]
    return [str(place) for place in range(step.value.shape[axis])]


def slices(step: Step) -> Iterator[Slice]:
    """The matrices of the first text: one per head where there are heads."""
    value = step.value[0].detach().cpu()
    hidden = _hidden(step)[0].cpu().expand_as(value)
    shape = (1, *value.shape) if value.dim() == 2 else (1, 1, *value.shape) if value.dim() == 1 else value.shape
    numbers = (value if value.dtype == torch.float64 else value.float()).reshape(shape).numpy()
    masked = hidden.reshape(shape).numpy()
    for place in range(shape[0]):
        yield Slice(_head(step, place), numbers[place], masked[place])


def _head(step: Step, place: int) -> str:
    if step.value.dim() < 4:
        return ""
    word = "head" if step.axes[1] == axes.HEADS else "key-value head"
    # Of a selection only the order is known, not which heads it took.
    return f"{word} {place}" if is_whole(step) else f"selected {word} {place + 1}"


def _hidden(step: Step) -> torch.Tensor:
    """A score of minus infinity is masked; a weight is masked where its score is."""
    scores = [name for name in step.inputs if name.endswith(".scores")]
    if step.site.endswith(".weights") and scores and is_whole(step):
        return step.recorded[scores[0]] == -torch.inf
    return step.value == -torch.inf


def block_of(site: str) -> str:
    """The group of a site in the story: a block such as "decoder 0", or what comes before and after the blocks."""
    words = site.split(".")
    number = next((place for place, word in enumerate(words) if word.isdigit()), None)
    if number is not None:
        return " ".join(words[: number + 1])
    if "embedding" in words:
        return "encoder embedding" if words[0] == "encoder" else "embedding"
    return "encoder output" if words[0] == "encoder" else "output"


def number(value: float) -> str:
    """A number in at most nine characters."""
    if value == 0:
        return "0"
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 else f"{value:.2e}"
