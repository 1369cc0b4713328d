"""What spectra say in plain words: how heads stand against random weights, and what is not certain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from pellucid.spectra.results import Head, Spectra

_NAMED = 4


@dataclass(frozen=True)
class Comparison:
    """Heads against their baselines at one tau. Only brackets that do not overlap count as below or above.

    far_below: surely less than half of the baseline. far_above: surely more than twice. The farthest come first.
    """

    tau: float
    below: tuple[Head, ...]
    above: tuple[Head, ...]
    far_below: tuple[Head, ...]
    far_above: tuple[Head, ...]
    compared: int


def compare(spectra: Spectra, tau: float) -> Comparison:
    ends = [
        (head, head.measured.spectrum.effective[tau], head.baseline.spectrum.effective[tau])
        for head in spectra.heads
        if head.baseline is not None
    ]
    ends.sort(key=lambda entry: sum(entry[1]) / sum(entry[2]))
    return Comparison(
        tau,
        below=tuple(head for head, (_, high), (low, _) in ends if high < low),
        above=tuple(head for head, (low, _), (_, high) in reversed(ends) if low > high),
        far_below=tuple(head for head, (_, high), (low, _) in ends if 2 * high < low),
        far_above=tuple(head for head, (low, _), (_, high) in reversed(ends) if low > 2 * high),
        compared=len(ends),
    )


def sentences(spectra: Spectra) -> list[str]:
    """A paragraph for the page and the foot of the table."""
    return [*_compared(spectra), *_widths(spectra), *_unsettled(spectra), *_failures(spectra)]


def head_name(spectra: Spectra, head: Head) -> str:
    """With the text, where there is more than one."""
    return f"{head.name}, text {head.text}" if any(each.text for each in spectra.heads) else head.name


def unsettled(spectra: Spectra) -> tuple[Head, ...]:
    """The heads whose top singular values were still growing when the budget was spent."""
    return tuple(head for head in spectra.heads if not head.measured.spectrum.settled)


def _compared(spectra: Spectra) -> Iterator[str]:
    missing = sum(head.baseline is None for head in spectra.heads)
    if missing == len(spectra.heads):
        yield "No baseline was measured, so nothing here tells what training did: random weights are low-rank too."
        return
    for place, tau in enumerate(spectra.tau):
        found, names = compare(spectra, tau), place == 0
        below = _far(spectra, found.far_below, "less than half", names)
        above = _far(spectra, found.far_above, "more than twice", names)
        same = found.compared - len(found.below) - len(found.above)
        yield (
            f"At tau {tau:g}, {_heads(len(found.below))} of {found.compared} {_have(len(found.below))} a lower "
            f"effective rank than the random weights{below}; {_heads(len(found.above))} {_have(len(found.above))} a "
            f"higher one{above}" + (f"; {same} cannot be told apart." if same else ".")
        )
    if missing:
        yield f"{_heads(missing)} {_have(missing)} no baseline yet."


def _widths(spectra: Spectra) -> Iterator[str]:
    ends = [(head, tau, head.measured.spectrum.effective[tau]) for head in spectra.heads for tau in spectra.tau]
    wide = [(1 - low / high, head, tau, (low, high)) for head, tau, (low, high) in ends if low < high]
    if not wide:
        yield "Every effective rank is exact."
        return
    share, head, tau, (low, high) = max(wide, key=lambda entry: entry[0])
    middle = median(1 - low / high for _, _, (low, high) in ends)
    yield (
        f"{len(ends) - len(wide)} of {len(ends)} effective ranks are exact. The others are brackets: the median width "
        f"is {middle:.1%} of the upper end, the widest [{low}, {high}], {share:.0%}, of "
        f"{head_name(spectra, head)} at tau {tau:g}."
    )


def _unsettled(spectra: Spectra) -> Iterator[str]:
    found = unsettled(spectra)
    if found:
        yield (
            f"The top singular values of {_heads(len(found))} were still growing when the budget was spent, so they "
            f"are lower bounds; the brackets hold all the same: {_names(spectra, found)}. A larger budget settles them."
        )


def _failures(spectra: Spectra) -> Iterator[str]:
    chances = [found.failure for head in spectra.heads for found in [head.measured.spectrum] if found.failure]
    if chances:
        yield (
            f"The lower ends of {_heads(len(chances))} rest on a randomised bound, which fails with a probability of "
            f"at most {max(chances):.0e} for each; every upper end, and every other lower end, is certain."
        )


def _far(spectra: Spectra, heads: Sequence[Head], how: str, names: bool) -> str:
    which = _names(spectra, heads) if names else _heads(len(heads))
    return f" ({how}: {which})" if heads else ""


def _names(spectra: Spectra, heads: Sequence[Head]) -> str:
    named = ", ".join(head_name(spectra, head) for head in heads[:_NAMED])
    return f"{named} and {len(heads) - _NAMED} more" if len(heads) > _NAMED else named


def _heads(count: int) -> str:
    return "no head" if count == 0 else "1 head" if count == 1 else f"{count} heads"


def _have(count: int) -> str:
    return "has" if count <= 1 else "have"
