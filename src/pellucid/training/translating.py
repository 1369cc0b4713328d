"""Translations of held-out sentences, scored by sacreBLEU and chrF."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from pellucid.errors import ConfigError, InputError
from pellucid.pretrained.facade import Model
from pellucid.training.config import Evaluation, RunConfig
from pellucid.training.formats import Row

AT_ONCE = 64


def check_translations(run: RunConfig) -> None:
    """Refuse a run that could not score its translations in the end."""
    if not run.evaluation.translate:
        return
    if not (run.data.valid or run.data.holdout):
        raise ConfigError(
            f"evaluation.translate is {run.evaluation.translate}, but no sentence is held out: set data.valid or "
            "data.holdout"
        )
    need_sacrebleu()


def need_sacrebleu() -> None:
    if find_spec("sacrebleu") is None:
        raise InputError("BLEU and chrF need sacrebleu: pip install 'pellucid[train]' (or pip install sacrebleu)")


def score_translations(model: Model, rows: list[Row], part: Evaluation) -> dict[str, Any]:
    """BLEU and chrF of the first `part.translate` rows, what sacreBLEU says of how, and a few of the translations."""
    need_sacrebleu()
    import sacrebleu

    rows = rows[: part.translate]
    written, wanted = translations(model, [row.text for row in rows], part), [[row.target for row in rows]]
    bleu = sacrebleu.BLEU(tokenize=part.bleu_tokens)
    score, letters = bleu.corpus_score(written, wanted), sacrebleu.CHRF().corpus_score(written, wanted)
    samples = [
        {"source": row.text, "target": row.target, "written": text}
        for row, text in list(zip(rows, written, strict=True))[:5]
    ]
    return {"bleu": score.score, "chrf": letters.score, "signature": str(bleu.get_signature()), "samples": samples}


def translations(model: Model, sources: list[str], part: Evaluation) -> list[str]:
    """What the model makes of each source, in their order; those of a length go together."""
    from pellucid.generation.decode import generate
    from pellucid.generation.request import Beams, positions

    places = sorted(range(len(sources)), key=lambda place: len(sources[place]))
    room = positions(model)
    found, beams = [""] * len(sources), Beams(part.beams, part.length_penalty)
    for first in range(0, len(places), AT_ONCE):
        some = places[first : first + AT_ONCE]
        longest = max(len(model.encode(sources[place])) for place in some)
        most = 2 * longest + 10 if room is None else min(2 * longest + 10, room)
        results = generate(model, [sources[place] for place in some], beams=beams, max_tokens=most)
        for place, result in zip(some, results, strict=True):
            found[place] = result.text or ""
    return found
