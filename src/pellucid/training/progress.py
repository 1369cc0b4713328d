"""What a person sees of a run: a bar or lines on stderr, a line of JSON per entry, TensorBoard if it is installed."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

LOG = "log.jsonl"


class Reporter:
    """quiet: only the first process of a run speaks and writes."""

    def __init__(self, folder: Path, steps: int, *, quiet: bool, show: bool = True) -> None:
        self.folder, self.steps, self.quiet, self.show = folder, steps, quiet, show and not quiet
        self.bar: Any = None
        self.task: Any = None
        self.board: Any = None

    def __enter__(self) -> Reporter:
        if not self.quiet and find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(self.folder / "tensorboard")
        if self.show:
            self._start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.board is not None:
            self.board.close()
        if self.bar is not None:
            self.bar.stop()

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TextColumn("left"))
        self.bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
        self.task = self.bar.add_task("", total=self.steps)
        self.bar.start()

    def say(self, note: str) -> None:
        if self.show:
            self.bar.console.print(note, highlight=False, markup=False, soft_wrap=True)

    def log(self, entry: dict[str, Any]) -> None:
        """An entry of a step, on disk before it is shown."""
        if self.quiet:
            return
        with (self.folder / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        if self.board is not None:
            for key, value in entry.items():
                if key != "step" and isinstance(value, int | float):
                    self.board.add_scalar(key, value, entry["step"])
        if self.show:
            line = _line(entry)
            self.bar.update(self.task, completed=entry["step"], description=line)
            if self.bar.disable or "valid_loss" in entry:
                self.say(f"step {entry['step']}/{self.steps}  {line}")

    def resume(self, step: int) -> None:
        """Forget what was logged after the checkpoint from which the run goes on: it happens again."""
        file = self.folder / LOG
        if self.quiet or not file.exists():
            return
        kept = [line for line in file.read_text(encoding="utf-8").splitlines() if _is_until(line, step)]
        aside = file.with_suffix(".unfinished")
        aside.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        aside.replace(file)


def _is_until(line: str, step: int) -> bool:
    try:
        return bool(json.loads(line)["step"] <= step)
    except (json.JSONDecodeError, KeyError):  # a line that a kill cut short
        return False


def _line(entry: dict[str, Any]) -> str:
    shown = {
        "loss": "loss {:.4f}",
        "valid_loss": "valid {:.4f}",
        "valid_accuracy": "accuracy {:.4f}",
        "valid_entity_f1": "entity F1 {:.4f}",
        "valid_bits_per_byte": "{:.4f} bits/byte",
        "tokens_per_second": "{:,.0f} tokens/s",
        "mfu": "MFU {:.1%}",
        "minutes_left": "{:.1f} min left",
    }
    return "  ".join(words.format(entry[key]) for key, words in shown.items() if entry.get(key) is not None)
