"""What a generation returns."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from typing import Any, Literal

End = Literal["token", "text", "length"]


@dataclass(frozen=True)
class Continuation:
    """One text that was written.

    text: the new text; a stop token or stop text is not part of it. None where the model has no tokenizer.
    ids: the prompt's, then the new ones, a stop token included. Those of an encoder-decoder begin with its start token.
    logprobs: of each new id under the model itself: before temperature, filters and penalty.
    score: what beams are ranked by; the sum of logprobs elsewhere.
    ended: by a stop token, by a stop text, or at the most tokens asked for.
    """

    text: str | None
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    score: float
    ended: End

    @property
    def new_ids(self) -> tuple[int, ...]:
        return self.ids[len(self.ids) - len(self.logprobs) :]


@dataclass(frozen=True)
class Result:
    """What was written after one prompt: one continuation, or several samples or beams, the best beam first.

    `text`, `ids` and `logprobs` are those of the first.
    """

    prompt: str | None
    prompt_ids: tuple[int, ...]
    continuations: tuple[Continuation, ...]

    @property
    def text(self) -> str | None:
        return self.continuations[0].text

    @property
    def ids(self) -> tuple[int, ...]:
        return self.continuations[0].ids

    @property
    def logprobs(self) -> tuple[float, ...]:
        return self.continuations[0].logprobs

    def to_json(self) -> dict[str, Any]:
        return {
            "prompt": self.prompt,
            "prompt_ids": list(self.prompt_ids),
            "continuations": [
                asdict(each) | {"ids": list(each.ids), "logprobs": list(each.logprobs)} for each in self.continuations
            ],
        }

    def _repr_html_(self) -> str:
        shown = (str(list(each.new_ids)) if each.text is None else each.text for each in self.continuations)
        start = escape(self.prompt or str(list(self.prompt_ids)))
        return "".join(f"<p>{start}<b>{escape(text)}</b></p>" for text in shown)


@dataclass(frozen=True)
class Event:
    """One more token of one text, as it is written.

    text: what can be shown now: nothing while a character is half written, or while it may turn out to be a stop text.
    ended: on the last event of a text. Its id is None if the text was only held back until then.
    """

    prompt: int
    sample: int
    id: int
    logprob: float
    text: str
    ended: End | None = None
