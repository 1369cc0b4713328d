"""The numbers of the worked example (note 000), and the script that writes its folder from them.

    python -m pellucid.pretrained.bundled.worked_example [FOLDER]

Matrices are as on paper: a row vector is multiplied from the right, x W. Our linear maps keep W transposed.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.model.config import Biases, Identity, Learned, ModelConfig, Plain
from pellucid.model.transformer import Transformer
from pellucid.pretrained.bundled import bundled_folder
from pellucid.pretrained.facade import Model
from pellucid.pretrained.save import save

Matrix = tuple[tuple[float, ...], ...]

WORDS = ("I", "love", "you", "<pad>")
EMBEDDING: Matrix = ((0.2, 0.5, -0.1), (-0.3, 0.8, 0.4), (0.6, -0.2, 0.7), (0.1, 0.1, 0.9))
POSITIONS: Matrix = ((0.1, 0.1, 0.1), (0.2, 0.2, 0.2))
QUERY: Matrix = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
KEY: Matrix = ((0.5, 0.0, 0.0), (0.0, 0.5, 0.0), (0.0, 0.0, 0.5))
VALUE: Matrix = QUERY
# The note adds the head to the residual as it is.
OUTPUT: Matrix = QUERY
UP: Matrix = ((0.1, 0.2, -0.1, 0.3), (-0.2, 0.3, 0.4, -0.1), (0.3, -0.1, 0.2, 0.0))
DOWN: Matrix = ((0.2, -0.1, 0.3), (0.1, 0.2, -0.2), (-0.3, 0.4, 0.1), (0.0, 0.1, -0.1))

# The note lets every token see every other, and takes its norms, which stand after each sum, to change nothing.
CONFIG = ModelConfig(
    vocab=4,
    width=3,
    heads=1,
    feed_forward=Plain(hidden=4, activation="relu"),
    decoder_blocks=1,
    context=2,
    position=Learned(),
    norm=Identity(),
    placement="post",
    biases=Biases.none(),
    causal=False,
)

# Words between spaces. There is no word for the unknown: a text with other words is refused, not guessed at.
TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {word: place for place, word in enumerate(WORDS)}, "unk_token": "<unk>"},
}


def matrix(numbers: Matrix) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def build() -> Transformer:
    network = Transformer(CONFIG).double().eval()
    attention, feed_forward = "decoder.0.attention", "decoder.0.feed_forward"
    network.load_state_dict(
        {
            "tokens.weight": matrix(EMBEDDING),
            "decoder.positions.table.weight": matrix(POSITIONS),
            f"{attention}.to_query.weight": matrix(QUERY).T,
            f"{attention}.to_key.weight": matrix(KEY).T,
            f"{attention}.to_value.weight": matrix(VALUE).T,
            f"{attention}.to_output.weight": matrix(OUTPUT).T,
            f"{feed_forward}.up.weight": matrix(UP).T,
            f"{feed_forward}.down.weight": matrix(DOWN).T,
        }
    )
    return network


def write(folder: Path) -> Path:
    """Our own layout, into a new folder."""
    save(Model(CONFIG, build()), folder)
    text = json.dumps(TOKENIZER, indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    return folder


def main() -> None:
    """Write the files anew where they are shipped, or to another folder."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else bundled_folder("worked-example")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        for file in write(Path(place) / "new").iterdir():
            shutil.copyfile(file, folder / file.name)


if __name__ == "__main__":
    main()
