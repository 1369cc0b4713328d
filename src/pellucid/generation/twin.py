"""The network as a compiled step reads it: the same parameters, with those that meet the same input side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from pellucid.generation.request import Joins
from pellucid.model.attention import Attention
from pellucid.model.feed_forward import GatedFeedForward
from pellucid.model.layers import Linear
from pellucid.model.mechanisms import KernelName
from pellucid.model.transformer import Transformer


def build_twin(network: Transformer, kernel: KernelName, joins: Joins) -> Transformer:
    twin = network.twin(kernel)
    assert twin.decoder is not None
    for block in twin.decoder.blocks:
        if joins != "none":
            join_projections(block.attention)
        if joins == "all" and isinstance(block.feed_forward, GatedFeedForward):
            join_gate(block.feed_forward)
    return twin.eval()


@torch.no_grad()
def lay_out_for_one_row(network: Transformer) -> None:
    """Put the longer side of each matrix of the decoder side by side in memory: a CPU reads it up to twice as fast.

    The parameters stay the same, and so do their values and shapes; this is for products with one row.
    """
    assert network.decoder is not None
    matrices = [module.weight for module in network.decoder.modules() if isinstance(module, Linear)]
    own = getattr(network.head, "weight", None)
    for matrix in (*matrices, network.tokens.weight if own is None else own):
        if matrix.shape[0] > matrix.shape[1] and matrix.stride(0) != 1:
            matrix.data = matrix.data.t().contiguous().t()


def join_projections(attention: Attention) -> None:
    attention.to_all = side_by_side((attention.to_query, attention.to_key, attention.to_value))


def join_gate(feed_forward: GatedFeedForward) -> None:
    feed_forward.gate_and_up = side_by_side((feed_forward.gate, feed_forward.up))


@torch.no_grad()
def side_by_side(maps: Iterable[Linear]) -> Linear:
    """One map that gives the outputs of all. Their parameters become parts of its own: nothing is held twice."""
    maps = list(maps)
    first = maps[0].weight
    sizes = [each.out_features for each in maps]
    biased = any(each.bias is not None for each in maps)
    with torch.device("meta"):
        joined = Linear(maps[0].in_features, sum(sizes), bias=biased)
    joined.weight = nn.Parameter(_joined([each.weight for each in maps]), requires_grad=False)
    for each, part in zip(maps, torch.split(joined.weight, sizes), strict=True):
        each.weight.data = part
    if biased:
        zeros = [
            first.new_zeros(size) if each.bias is None else each.bias for each, size in zip(maps, sizes, strict=True)
        ]
        joined.bias = nn.Parameter(_joined(zeros), requires_grad=False)
        for each, part in zip(maps, torch.split(joined.bias, sizes), strict=True):
            if each.bias is not None:
                each.bias.data = part
    return joined


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The parts as one tensor; if they are its consecutive parts already, as they lie."""
    rows = sum(part.shape[0] for part in parts)
    whole = torch.empty(0, dtype=parts[0].dtype, device=parts[0].device)
    step, place = parts[0].stride(0), parts[0].storage_offset()
    for part in parts:
        same = part.untyped_storage().data_ptr() == parts[0].untyped_storage().data_ptr()
        if not same or part.storage_offset() != place or not part.is_contiguous():
            return torch.cat(list(parts)).detach()
        place += part.numel()
    shape = (rows, *parts[0].shape[1:])
    return whole.set_(parts[0].untyped_storage(), parts[0].storage_offset(), shape, (step, 1)[: len(shape)])


def is_true(twin: Transformer, network: Transformer) -> bool:
    """Whether the twin reads what the network holds: the same parameters, also where they are joined."""
    assert twin.decoder is not None
    own = twin.state_dict()
    if any(tensor.data_ptr() != own[name].data_ptr() for name, tensor in network.state_dict().items()):
        return False
    pairs: list[tuple[nn.Module | None, Linear]] = []
    for block in twin.decoder.blocks:
        pairs.append((block.attention.to_all, block.attention.to_query))
        if isinstance(block.feed_forward, GatedFeedForward):
            pairs.append((block.feed_forward.gate_and_up, block.feed_forward.gate))
    return all(not isinstance(a, Linear) or a.weight.data_ptr() == b.weight.data_ptr() for a, b in pairs)
