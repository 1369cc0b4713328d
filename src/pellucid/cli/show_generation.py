"""Texts on a terminal as they are written, and the figures of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pellucid.generation.results import Continuation, Event, Result
    from pellucid.generation.stats import Stats


class Shown:
    """One text streams; of several, each is printed when all are there. Without a tokenizer, ids are."""

    def __init__(self, *, many: bool, words: bool) -> None:
        self.many, self.words = many, words

    def event(self, event: Event) -> None:
        if not self.many:
            print(event.text if self.words else f"{event.id} ", end="", flush=True)

    def end(self, results: list[Result]) -> None:
        if self.many:
            self.results(results)
        else:
            print()

    def results(self, results: list[Result]) -> None:
        for place, result in enumerate(results):
            for rank, each in enumerate(result.continuations):
                name = f"[{place}.{rank}] " if self.many else ""
                print(f"{name}{self._text(each)}")

    def _text(self, each: Continuation) -> str:
        return " ".join(map(str, each.new_ids)) if each.text is None else each.text


def stats_lines(stats: Stats) -> list[str]:
    lines = [
        f"prefill: {stats.prefill_tokens} tokens, {stats.prefill_seconds:.3f} s, {stats.prefill_rate:.4g} tokens/s",
    ]
    if stats.decode_rate is not None:
        lines.append(
            f"decode: {stats.decode_tokens} tokens, {stats.decode_seconds:.3f} s, {stats.decode_rate:.4g} tokens/s"
        )
    if stats.cache_bytes_per_token is not None and stats.formula_bytes_per_token is not None:
        lines.append(
            f"cache: {stats.cache_bytes_per_token:.6g} bytes per token; 2 x blocks x key-value heads x head width x "
            f"bytes = {stats.formula_bytes_per_token:.6g}"
        )
    if stats.share_of_bandwidth is not None:
        lines.append(
            f"memory: {stats.bytes_per_step / 1e6:.4g} MB read per step, {stats.share_of_bandwidth:.1%} of the "
            f"{stats.bandwidth / 1e9:.4g} GB/s that a copy reaches"
        )
    return lines
