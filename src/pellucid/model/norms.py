"""Normalising each token's vector."""

from __future__ import annotations

from torch import nn

from pellucid.model import config


def build_norm(norm: config.Norm, width: int) -> nn.Module:
    match norm:
        case config.LayerNorm():
            return nn.LayerNorm(width, eps=norm.epsilon, bias=norm.bias)
        case config.RMSNorm():
            return nn.RMSNorm(width, eps=norm.epsilon)
        case config.Identity():
            return nn.Identity()
