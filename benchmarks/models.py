"""How good are the models that the run files make? Every finished run of a folder, on texts it has not seen.

`--runs` holds a folder per run (what `output.folder` names; NAME.VARIANT is another try of a run file), `--data` a
folder per corpus. Language models: loss, perplexity and bits per byte of text that was held out. The translators: BLEU
and chrF of held-out sentences; variants are chosen by `valid_bleu`. The tagger: accuracy over the words of the test
file. With samples of what each writes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import pellucid
from benchmarks.record import record
from pellucid.pretrained.facade import Model
from pellucid.training.evaluate import evaluate
from pellucid.training.finish import trained_config
from pellucid.training.runfile import changed

Sample = dict[str, str]


@dataclass(frozen=True)
class Exam:
    """files: in the data's folder. changes: of the run that made the model, for its evaluation alone.

    chosen_on: where BLEU is measured too, for a choice among variants that the test has no part in.
    """

    files: str
    said: str
    samples: Callable[[Model], list[Sample]]
    changes: tuple[str, ...] = ()
    held_out: bool = False
    chosen_on: str | None = None


def stories(model: Model) -> list[Sample]:
    return _written(model, ["Once upon a time, there was a little girl named Lily.", "Tom had a red ball."])


def plays(model: Model) -> list[Sample]:
    return _written(model, ["ROMEO:"])


def _written(model: Model, prompts: list[str]) -> list[Sample]:
    written = pellucid.generate(model, prompts, max_tokens=160, temperature=0.7, seed=0)
    return [
        {"given": given, "written": _on_one_line(result.text)} for given, result in zip(prompts, written, strict=True)
    ]


def translated(model: Model) -> list[Sample]:
    sources = ("I love you.", "Where is the station?", "I want to learn Chinese.")
    return [{"given": one, "written": pellucid.generate(model, one, beams=4)[0].text or ""} for one in sources]


def tagged(model: Model) -> list[Sample]:
    texts = ("They refuse to permit us to obtain the refuse permit.", "The old man sees a saw.")
    return [
        {"given": text, "written": " ".join(f"{token}/{label}" for token, label in model.tag(text))} for text in texts
    ]


def _on_one_line(text: str | None) -> str:
    return " ".join((text or "").split())


STORIES = Exam(
    "stories/valid.txt.gz",
    "the 2,000 stories of the validation file, each from its start",
    stories,
    ('task.packing="padded"',),
)
TRANSLATE = "evaluation.translate=10000"  # all of them
EXAMS = {
    "translate-en-zh": Exam(
        "tatoeba_cmn_eng/cmn.txt",
        "the tenth that was held out by a hash of the source, translated with 4 beams; BLEU over characters",
        translated,
        (TRANSLATE, "evaluation.beams=4", 'evaluation.bleu_tokens="char"'),
        held_out=True,
    ),
    "tag-en": Exam("ud_english_ewt/en_ewt-ud-test.conllu", "the 2,077 sentences of the test file", tagged),
    "multi30k-en-de": Exam(
        "multi30k_en_de/test_2016_flickr",
        "test2016, 5 beams, sacreBLEU 13a on lower-cased text",
        lambda model: [],
        (TRANSLATE, "evaluation.beams=5"),
        chosen_on="multi30k_en_de/val",
    ),
    "shakespeare-char": Exam(
        "tinyshakespeare/input.txt",
        "the last tenth of the text, by which the best step was chosen",
        plays,
        held_out=True,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", action="append", help="only the runs of these names")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--trained-on", default="unknown", help="the device, versions and commit of the runs")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file; what is there for others stays")
    options = parser.parse_args()
    found = json.loads(options.out.read_text())["models"] if options.out and options.out.exists() else {}
    for folder in sorted(path.parent for path in options.runs.glob("*/result.json")):
        if options.only and folder.name not in options.only:
            continue
        found[folder.name] = scored(folder, options.data, options.device)
        print(folder.name, json.dumps(found[folder.name]["scores"]), flush=True)
        if options.out:
            record(options.out, {"trained_on": options.trained_on, "models": found})


def scored(folder: Path, data: Path, device: str) -> dict[str, Any]:
    exam = EXAMS.get(folder.name.split(".")[0], STORIES)
    model = pellucid.load(folder / "model", device=device, dtype=torch.float32)
    run = trained_config(folder / "model")
    assert run is not None
    asked = changed(run, exam.changes)
    measured = evaluate(model, asked, [data / exam.files], held_out=exam.held_out)
    if exam.chosen_on is not None:
        measured["valid_bleu"] = evaluate(model, asked, [data / exam.chosen_on])["bleu"]
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return {
        "parameters": result["parameters"],
        "steps": result["steps"],
        "batch_tokens": run.batch.tokens,
        "seed": run.seed,
        "recording": result["recording"],
        "scored_on": exam.said,
        "scores": {name: value for name, value in measured.items() if isinstance(value, float)},
        "signature": measured.get("signature"),
        "samples": exam.samples(model),
    }


if __name__ == "__main__":
    main()
