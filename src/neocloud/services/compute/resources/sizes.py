"""Sizes as the contract gives them: a oneof of units. Pure."""

from typing import Any

KIB, MIB, GIB = 1024, 1024**2, 1024**3
BLOCK_SIZE_BYTES = 4096
_UNITS = {"size_bytes": 1, "size_kibibytes": KIB, "size_mebibytes": MIB, "size_gibibytes": GIB}


def size_bytes(spec: Any) -> int:
    """The size, whichever unit it was given in; 0 when none was."""
    unit = spec.WhichOneof("size")
    return getattr(spec, unit) * _UNITS[unit] if unit else 0


def gib(size: int) -> int:
    """Whole GiB; a part of one counts as one."""
    return -(-size // GIB)
