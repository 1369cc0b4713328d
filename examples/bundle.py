"""Put trained models into the package: `python examples/bundle.py RUNS SCORES.json`.

RUNS holds a folder per finished run of `examples/runs`, SCORES.json is what `benchmarks/models.py` found of them.
"""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from pellucid.pretrained.bundled import CARD, DESCRIPTIONS, HERE, Card
from pellucid.training.config import RunConfig
from pellucid.training.finish import TRAINING

TRAINED_ON = "one H200"
RUN_FILES = Path(__file__).parent / "runs"


class Data(NamedTuple):
    what: str
    licence: str


STORIES = Data(
    "124,846 short stories that were sampled from a TinyStories model of 15 million parameters",
    "the stories come from a model under the MIT licence; the weights are Apache-2.0, as Pellucid is",
)
DATA = {
    "translate-en-zh": Data(
        "29,155 English-Chinese sentence pairs of the Tatoeba project, simplified and traditional; a tenth held out",
        "CC BY 2.0 FR: sentences by the contributors of tatoeba.org, via manythings.org; the weights are Apache-2.0",
    ),
    "tag-en": Data(
        "Universal Dependencies English EWT 2.15, 12,544 sentences",
        "annotations CC BY-SA 4.0 by the Universal Dependencies project; the weights may be used likewise",
    ),
}
EXAMPLES = {
    "translate-en-zh": "I love you.",
    "tag-en": "They refuse to permit us to obtain the refuse permit.",
}
STORY = "One day, Lily went to the park with her mom. She saw a big"


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    runs, scores = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    for name in DESCRIPTIONS:
        if name in scores["models"]:
            bundle(name, runs / name, scores["models"][name])


def bundle(name: str, run: Path, found: dict[str, Any]) -> None:
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(run / "model", folder)
    training = folder / TRAINING
    training.write_text(_as_published(name, training), encoding="utf-8")
    data = DATA.get(name, STORIES)
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    card = Card(
        data=data.what,
        licence=data.licence,
        run=f"{name}.toml",
        trained=f"{result['steps']:,} steps of {found['batch_tokens']:,} tokens, seed {found['seed']}, on {TRAINED_ON}",
        scored_on=found["scored_on"],
        scores=found["scores"],
        example=EXAMPLES.get(name, STORY),
        samples=found["samples"],
    )
    (folder / CARD).write_text(card.model_dump_json(indent=1) + "\n", encoding="utf-8")
    for file in folder.iterdir():
        file.chmod(0o644)
    print(f"{name}: {sum(file.stat().st_size for file in folder.iterdir()) / 1e6:.2f} MB")


def _as_published(name: str, training: Path) -> str:
    """How it was trained, with the folders of the run file in place of those of the machine."""
    published = tomllib.loads((RUN_FILES / f"{name}.toml").read_text(encoding="utf-8"))
    run = json.loads(training.read_text(encoding="utf-8"))
    run["data"] |= {"root": published["data"]["root"], "cache": published["data"].get("cache")}
    run["output"]["folder"] = published["output"]["folder"]
    if RunConfig(**run) != RunConfig(**published):
        sys.exit(f"{training} is no run of {name}.toml: change the file, or train again")
    return json.dumps(run, indent=1) + "\n"


if __name__ == "__main__":
    main()
