"""For all tests: one thread, the order of the property tests, and the matrix of combinations at the end of a run."""

from __future__ import annotations

import re
from collections import Counter
from itertools import product
from string import ascii_lowercase

import pytest
import torch

from .properties.combinations import ALL, ALLOWED, ATTENTIONS, POSITIONS, PROPERTIES, REFUSED, Combination

# The tensors are tiny, and `-n` already uses the cores.
torch.set_num_threads(1)

NAMES = {str(combination): combination for combination in ALL}
Case = tuple[str, Combination]


def case_of(nodeid: str) -> Case | None:
    """The property and the combination that a test is about."""
    found = re.search(r"\[(\w+):([\w-]+)\]$", nodeid)
    return (found[1], NAMES[found[2]]) if found and found[2] in NAMES else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of a combination side by side, so that its network is built once."""
    order = {combination: index for index, combination in enumerate(ALL)}
    cases = {item: case_of(item.nodeid) for item in items}
    items.sort(key=lambda item: -1 if (case := cases[item]) is None else order[case[1]])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Under xdist the controller prints this, from the reports that the workers sent."""
    outcomes: dict[Case, str] = {}
    for outcome in ("passed", "skipped", "failed", "error"):
        for report in terminalreporter.getreports(outcome):
            if case := case_of(report.nodeid):
                outcomes[case] = outcome
    terminalreporter.section("combinations of attention, position, norm, placement and architecture")
    if outcomes:
        for line in matrix(outcomes):
            terminalreporter.write_line(line)
    else:
        terminalreporter.write_line(
            f"{len(ALLOWED)} allowed, {len(REFUSED)} refused; their properties were no part of this run"
        )


def matrix(outcomes: dict[Case, str]) -> list[str]:
    """A line per attention and position: of its combinations, how many passed, or why there was nothing to run."""
    letters: dict[str, str] = {}
    lines = [row_of("attention", "position", "refused", *PROPERTIES)]
    for attention, position in product(ATTENTIONS, POSITIONS):
        row = [each for each in ALL if (each.attention, each.position) == (attention, position)]
        refused = Counter(letter(letters, plainly(REFUSED[each], position)) for each in row if each in REFUSED)
        allowed = [each for each in row if each not in REFUSED]
        cells = [cell(letters, name, allowed, outcomes) for name in PROPERTIES]
        lines.append(row_of(attention, position, counts(refused), *cells))
    lines.append(
        "12: as many passed. a6: six have nothing to run, for reason a. 3 failed!: three failed. -: all refused."
    )
    lines += [f"  {mark}  {reason}" for reason, mark in letters.items()]
    tests = ", ".join(f"{count} {outcome}" for outcome, count in sorted(Counter(outcomes.values()).items()))
    lines.append(f"{len(ALL)} combinations, {len(ALLOWED)} allowed, {len(REFUSED)} refused; tests: {tests}")
    return lines


def row_of(attention: str, position: str, *cells: str) -> str:
    return f"{attention:18}{position:11}" + "".join(f"{cell:>12}" for cell in cells)


def cell(letters: dict[str, str], name: str, allowed: list[Combination], outcomes: dict[Case, str]) -> str:
    if not allowed:
        return "-"
    reasons = {each: PROPERTIES[name](each) for each in allowed}
    idle = Counter(letter(letters, reason) for reason in reasons.values() if reason is not None)
    ran = Counter(outcomes.get((name, each), "not run") for each, reason in reasons.items() if reason is None)
    passed = ran.pop("passed", 0)
    problems = [f"{count} {outcome}!" for outcome, count in ran.items()]
    return " ".join([*([str(passed)] if passed else []), *problems, *([counts(idle)] if idle else [])])


def letter(letters: dict[str, str], reason: str) -> str:
    return letters.setdefault(reason, ascii_lowercase[len(letters)])


def counts(found: dict[str, int]) -> str:
    return " ".join(f"{mark}{count}" for mark, count in sorted(found.items()))


def plainly(message: str, position: str) -> str:
    """One reason for all positions of which the config says the same."""
    return message.replace(f"{position} positions", "these positions")
