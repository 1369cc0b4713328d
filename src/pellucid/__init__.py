"""A Transformer you can see through."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pellucid.errors import PellucidError
    from pellucid.generation.decode import generate
    from pellucid.kernels.mask import Mask
    from pellucid.lens.trace import trace
    from pellucid.model.config import ModelConfig
    from pellucid.model.presets import preset
    from pellucid.model.transformer import Transformer
    from pellucid.pretrained.load import load
    from pellucid.pretrained.save import export, save
    from pellucid.spectra.measure import spectrum
    from pellucid.training.run import train

__version__ = "0.1.0"

__all__ = [
    "Mask",
    "ModelConfig",
    "PellucidError",
    "Transformer",
    "__version__",
    "export",
    "generate",
    "load",
    "preset",
    "save",
    "spectrum",
    "trace",
    "train",
]

# Imported when first used, so that `import pellucid` stays light: torch comes with the first model.
_HOMES = {
    "Mask": "pellucid.kernels.mask",
    "ModelConfig": "pellucid.model.config",
    "PellucidError": "pellucid.errors",
    "export": "pellucid.pretrained.save",
    "generate": "pellucid.generation.decode",
    "load": "pellucid.pretrained.load",
    "Transformer": "pellucid.model.transformer",
    "preset": "pellucid.model.presets",
    "save": "pellucid.pretrained.save",
    "spectrum": "pellucid.spectra.measure",
    "trace": "pellucid.lens.trace",
    "train": "pellucid.training.run",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'pellucid' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
