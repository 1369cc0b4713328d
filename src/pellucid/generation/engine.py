"""Steps as a compiled graph: one per shape of lanes, replayed without a word from the host.

An engine owns the lanes that its graph reads and writes; others are copied into them. On a GPU the compiled step is
captured as a CUDA graph; elsewhere it is called.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from pellucid.generation.lanes import Lanes, step
from pellucid.generation.request import Joins, Run
from pellucid.generation.twin import build_twin, is_true
from pellucid.model.mechanisms import KernelName
from pellucid.model.transformer import Transformer

# An engine holds a cache; beyond so many per network, the one unused for longest is let go.
MOST = 4
# For products of one row, this lets the compiler write loops of its own instead of calling a library's.
INDUCTOR: dict[str, Any] = {"coordinate_descent_tuning": True}


class Engine:
    def __init__(self, network: Transformer, lanes: Lanes) -> None:
        self.lanes, self.network = lanes, network
        gpu = lanes.token.device.type == "cuda"
        compiled = torch.compile(_apart(step), fullgraph=True, dynamic=False, options=INDUCTOR if gpu else None)
        self._step: Callable[[], None] = lambda: compiled(network, lanes)
        if gpu:
            self._step = self._captured(self._step)

    def replay(self, steps: int) -> None:
        assert self.lanes.cache is not None
        for _ in range(steps):
            self._step()
        self.lanes.cache.advance(steps)

    def adopt(self, lanes: Lanes) -> None:
        """Go on where these lanes are."""
        assert self.lanes.cache is not None
        assert lanes.cache is not None
        for mine, new in zip(self.lanes.tensors(), lanes.tensors(), strict=True):
            if mine is not new:
                mine.copy_(new)
        self.lanes.cache.length = lanes.cache.length

    def take_lanes(self) -> Lanes:
        """These lanes as they are now, whose cache may be made larger: its tensors are then new ones."""
        lanes = copy.copy(self.lanes)
        lanes.cache = copy.copy(self.lanes.cache)
        assert lanes.cache is not None
        lanes.cache.blocks = [copy.copy(block) for block in lanes.cache.blocks]
        for block in lanes.cache.blocks:
            block.own = copy.copy(block.own)
        return lanes

    def _captured(self, call: Callable[[], None]) -> Callable[[], None]:
        """Compiling and warming up take steps, which are undone."""
        before = [tensor.clone() for tensor in self.lanes.tensors()]

        def undo() -> None:
            for tensor, old in zip(self.lanes.tensors(), before, strict=True):
                tensor.copy_(old)

        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
                undo()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        undo()
        return graph.replay


@dataclass
class Compiled:
    """What was compiled for a network: its twin, and an engine per shape of lanes."""

    twin: Transformer
    engines: OrderedDict[tuple[object, ...], Engine] = field(default_factory=OrderedDict)


_COMPILED: WeakKeyDictionary[Transformer, dict[tuple[KernelName, Joins], Compiled]] = WeakKeyDictionary()


def engine_for(network: Transformer, lanes: Lanes, run: Run) -> Engine:
    """The engine for lanes of this shape, going on where they are. Made anew if the network's parameters have moved."""
    alone = len(lanes.token) == 1
    joins: Joins = ("projections" if alone else "all") if run.joins == "auto" else run.joins
    twins, way = _COMPILED.setdefault(network, {}), (run.kernel, joins)
    if way not in twins or not is_true(twins[way].twin, network):
        twins[way] = Compiled(build_twin(network, *way))
    engines = twins[way].engines
    key = (lanes.shape, tuple((tensor.shape, tensor.dtype) for tensor in lanes.tensors()))
    if key not in engines:
        while len(engines) >= MOST:
            engines.popitem(last=False)
        engines[key] = Engine(twins[way].twin, lanes)
    engines.move_to_end(key)
    engines[key].adopt(lanes)
    return engines[key]


def _apart(function: Callable[..., None]) -> Callable[..., None]:
    """The same function with code of its own: the compiler counts how often it compiles one, and stops at eight."""
    return FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
