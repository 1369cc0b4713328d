"""Text from ids one by one: only what later ids cannot change, and only until a stop text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pellucid.generation.results import End
from pellucid.pretrained.facade import Model

# A decoder may treat the first token of a text in its own way, and join bytes and words to those just before.
_CONTEXT = 6
_UNFINISHED = "�"


@dataclass
class Writing:
    """One text while it is written: its ids, what of it can be shown, and whether it has ended."""

    model: Model
    prompt: tuple[int, ...]
    stop_ids: frozenset[int]
    stop_texts: tuple[str, ...] = ()
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    shown: int = 0
    ended: End | None = None
    _settled: int = 0

    def push(self, token: int, logprob: float) -> str:
        """Take one more id, and return the text that it settles."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        if token in self.stop_ids:
            return self._end("token")
        self._settle()
        if any(stop in self.text for stop in self.stop_texts):
            self.text = self.text[: min(place for s in self.stop_texts if (place := self.text.find(s)) >= 0)]
            return self._end("text")
        return self._show(len(self.text) - self._may_be_a_stop())

    def finish(self) -> str:
        """The most tokens were written: the text that was still held back."""
        return self._end("length")

    def _end(self, how: End) -> str:
        self.ended = how
        if self.model.tokenizer is not None and how != "text":
            whole = written_text(self.model, self.prompt, self._spoken)
            self.text = whole if whole.startswith(self.text[: self.shown]) else self.text
        return self._show(len(self.text))

    @property
    def _spoken(self) -> list[int]:
        return self.ids[:-1] if self.ids and self.ids[-1] in self.stop_ids else self.ids

    def _settle(self) -> None:
        """Add the ids since the last time, decoded with a few before them, if they end on a whole character."""
        if self.model.tokenizer is None:
            return
        before = [*self.prompt, *self.ids[: self._settled]][-_CONTEXT:]
        known = self.model.decode(before)
        more = self.model.decode([*before, *self.ids[self._settled :]])
        if more.endswith(_UNFINISHED) or not more.startswith(known):
            return
        self.text += more[len(known) :]
        self._settled = len(self.ids)

    def _may_be_a_stop(self) -> int:
        """How many characters at the end may be the beginning of a stop text."""
        return max(
            (n for stop in self.stop_texts for n in range(1, len(stop)) if self.text.endswith(stop[:n])), default=0
        )

    def _show(self, end: int) -> str:
        piece = self.text[self.shown : end]
        self.shown = max(self.shown, end)
        return piece


def written_text(model: Model, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """The text of ids that come after a prompt, with the space before it if there is one."""
    before = list(prompt)[-_CONTEXT:]
    known, whole = model.decode(before), model.decode([*before, *ids])
    return whole[len(known) :] if whole.startswith(known) else model.decode(list(ids))
