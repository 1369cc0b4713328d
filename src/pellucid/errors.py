"""Every error that Pellucid raises on purpose.

    PellucidError
    ├── ConfigError      a model description that cannot be right
    ├── InputError       ids, masks or texts that the model cannot take
    ├── KernelError      an attention kernel that cannot do what is asked of it
    ├── CacheError       a cache that does not fit the model or the tokens
    └── CheckpointError  a checkpoint that cannot be read, or that we cannot build

Each message gives the value seen, the value wanted and the next step.
"""

from __future__ import annotations


class PellucidError(Exception):
    """The root: catch this one to catch them all."""


class ConfigError(PellucidError, ValueError):
    """A model description that cannot be right."""


class InputError(PellucidError, ValueError):
    """Ids, masks or texts that the model cannot take."""


class KernelError(PellucidError, NotImplementedError):
    """An attention kernel that cannot do what is asked of it."""


class CacheError(PellucidError, ValueError):
    """A cache that does not fit the model or the tokens."""


class CheckpointError(PellucidError, ValueError):
    """A checkpoint that cannot be read, or that we cannot build."""
