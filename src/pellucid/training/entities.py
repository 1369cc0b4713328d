"""Entities in the labels of a sentence: B-, I-, E- and S- before a kind, O outside (BIO and IOBES).

An entity counts when its kind and both its ends are right. Where labels contradict each other, spans begin and end as
in seqeval and conlleval: an I- of another kind than the label before it begins an entity of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

OUTSIDE = "O"
Span = tuple[str, int, int]


def are_entities(labels: Iterable[str]) -> bool:
    """Whether labels are of this kind: O, or one of the four letters, a hyphen and a word."""
    inside = [label for label in labels if label != OUTSIDE]
    return bool(inside) and all(label[:2] in ("B-", "I-", "E-", "S-") and label[2:] for label in inside)


def spans(labels: Sequence[str]) -> set[Span]:
    """The kind of each entity, its first word and its last."""
    begins = [
        place
        for place, (before, label) in enumerate(pairwise([OUTSIDE, *labels]))
        if label != OUTSIDE and _begins(before, label)
    ]
    return {(labels[begin][2:], begin, _last(labels, begin)) for begin in begins}


def _begins(before: str, label: str) -> bool:
    return label[0] in "BS" or before[0] in "OES" or before[2:] != label[2:]


def _last(labels: Sequence[str], begin: int) -> int:
    last = begin
    while labels[last][0] not in "ES" and last + 1 < len(labels):
        after = labels[last + 1]
        if after == OUTSIDE or _begins(labels[last], after):
            break
        last += 1
    return last


def f1(right: int | float, found: int | float, true: int | float) -> float:
    """The harmonic mean of right / found and right / true."""
    return 2 * right / (found + true) if found + true else 0.0
