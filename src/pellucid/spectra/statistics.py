"""What a head looks at, without its matrix."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.errors import InputError
from pellucid.kernels.operator import AttentionOperator
from pellucid.spectra.results import Statistics


def statistics(operator: AttentionOperator) -> Statistics:
    """Of an operator of one head."""
    seeing = float(operator.seeing())
    if seeing == 0:
        raise InputError("every query of this head may look at nothing: check the mask")
    mass = operator.column_mass()[0, 0].double()
    heaviest = int(mass.argmax())
    rows = {
        "entropy": operator.row_entropy(),
        "sink": operator.column(0),
        "distance": operator.row_distance(),
        "diagonal": operator.diagonal(),
        "previous": operator.diagonal(-1),
    }
    means = {name: float(values.double().sum()) / seeing for name, values in rows.items()}
    return Statistics(**means, heaviest=float(mass[heaviest]) / seeing, heaviest_key=heaviest)


def statistics_of_matrix(weights: Float[Tensor, "query key"]) -> Statistics:
    """Of a matrix that is there."""
    weights = weights.double()
    seeing = float((weights.sum(-1) > 0).sum())
    if seeing == 0:
        raise InputError("every query of this head may look at nothing: check the mask")
    slots, keys = (torch.arange(n, device=weights.device) for n in weights.shape)
    mass = weights.sum(0)
    heaviest = int(mass.argmax())
    totals = {
        "entropy": torch.special.entr(weights).sum(),
        "sink": mass[0],
        "distance": (weights * (slots[:, None] - keys).abs()).sum(),
        "diagonal": weights.diagonal().sum(),
        "previous": weights.diagonal(-1).sum(),
    }
    means = {name: float(total) / seeing for name, total in totals.items()}
    return Statistics(**means, heaviest=float(mass[heaviest]) / seeing, heaviest_key=heaviest)
