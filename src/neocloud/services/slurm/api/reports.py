"""Read the output of the probes of `check`, which run programs of the tenant that may print anything."""

import json
from collections.abc import Mapping
from typing import Any

MOST = 10**15
"""Largest figure that is taken, of any unit."""
MAX_GPUS = 64
"""GPUs of one node; the largest preset has 8."""
MAX_ROWS = 64
"""Sizes of one measurement; the probe has 4."""
MAX_NAME_CHARS = 100
"""Length of a GPU's name."""
MAX_LINE_CHARS = 300
"""Length of a program's last line in a message."""
BACKENDS = ("gloo", "nccl")


class BadReport(Exception):
    """What was printed is no report."""


def probe_report(output: bytes) -> dict[str, Any]:
    """The figures of one node. Raises BadReport. The engine bounds the output."""
    found = _object(output)
    gpus = found.get("gpus")
    if gpus is not None and not (
        isinstance(gpus, list) and len(gpus) <= MAX_GPUS and all(map(_is_name, gpus))
    ):
        raise BadReport('"gpus" is no list of names')
    names = ("cpus", "memory_mib", "write_mib_per_second", "read_mib_per_second", "time")
    return {"gpus": gpus, **{name: _number(found, name) for name in names}}


def all_reduce_report(output: bytes) -> dict[str, Any]:
    """The figures of a measurement between nodes. Raises BadReport."""
    found = _object(output)
    rows = found.get("results")
    if found.get("backend") not in BACKENDS:
        raise BadReport(f'"backend" is none of {", ".join(BACKENDS)}')
    if not (isinstance(rows, list) and 0 < len(rows) <= MAX_ROWS):
        raise BadReport('"results" is no list of measurements')
    return {"backend": found["backend"], "ranks": _number(found, "ranks"), "results": list(map(_row, rows))}


def last_line(stderr: bytes, exit_code: int) -> str:
    """Why a program failed, by its own words."""
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:MAX_LINE_CHARS] if lines else f"exit code {exit_code}"


def _row(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict) or not isinstance(row.get("right"), bool):
        raise BadReport('a measurement does not say whether its sum was "right"')
    names = ("size_mib", "bus_mib_per_second", "milliseconds")
    return {"right": row["right"], **{name: _number(row, name) for name in names}}


def _object(output: bytes) -> dict[str, Any]:
    try:
        found = json.loads(output)
    except (ValueError, RecursionError):
        raise BadReport("it is no JSON") from None
    if not isinstance(found, dict):
        raise BadReport("it is no JSON object")
    return found


def _number(found: Mapping[str, Any], name: str) -> int | float:
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST:  # nor NaN
        raise BadReport(f'"{name}" is no number from 0 to {MOST:,}')
    return value


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_NAME_CHARS and value.isprintable()
