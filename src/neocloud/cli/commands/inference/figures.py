"""Sizes and counts formatted for people."""

_UNITS = (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3))


def parameters(count: int) -> str:
    """ "8.2B" for 8,190,735,360."""
    for unit, size in _UNITS:
        if count >= size:
            return f"{count / size:.1f}".removesuffix(".0") + unit
    return str(count) if count else ""


def size(number: int) -> str:
    """ "15.3 GiB"."""
    for unit, each in (("GiB", 1024**3), ("MiB", 1024**2)):
        if number >= each:
            return f"{number / each:.1f} {unit}"
    return f"{number / 1024:.0f} KiB" if number else ""
