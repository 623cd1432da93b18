"""Expected values of a host, read from a file of the operator. Without one, most counts have no limit."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from neocloud.core.json_values import is_list, is_object

MOST_BYTES = 1 << 16
MOST_MOUNTS = 64


class ExpectationError(ValueError):
    """The file cannot be used; says why."""


@dataclass(frozen=True)
class Expected:
    """None and () stand for what nobody said."""

    gpus: int | None = None
    nvlinks: int | None = None
    """Number for each GPU."""
    cpus: int | None = None
    memory_mib: int | None = None
    ib_ports: int | None = None
    ib_rate_gbps: int | None = None
    nvmes: int | None = None
    mounts: tuple[str, ...] = ()


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value <= 1 << 40:
        raise ValueError("is not a whole number from 0 on")
    return value


def _mounts(value: object) -> tuple[str, ...]:
    paths = value if is_list(value) else [None]
    if len(paths) > MOST_MOUNTS:
        raise ValueError(f"has more than {MOST_MOUNTS} paths")
    found = tuple(each for each in paths if isinstance(each, str))
    if len(found) < len(paths) or not all(map(_is_path, found)):
        raise ValueError('is not a list of paths such as ["/jail"]')
    return found


def _is_path(text: str) -> bool:
    return text.startswith("/") and len(text) <= 1024 and text.isprintable()


_READERS: Mapping[str, Callable[[object], object]] = {
    each.name: _mounts if each.name == "mounts" else _whole for each in fields(Expected)
}


def read_expected(path: Path) -> Expected:
    """Return what the file says. Raises ExpectationError."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ExpectationError(f"{path} is larger than {MOST_BYTES:,} bytes")
        given: object = json.loads(data)
    except OSError as error:
        raise ExpectationError(f"{path} cannot be read: {(error.strerror or 'failed').lower()}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, ExpectationError):
            raise
        raise ExpectationError(f"{path} is not JSON: {error}") from None
    if not is_object(given):
        raise ExpectationError(f'{path} is not an object such as {{"gpus": 8}}')
    values = dict[str, Any]()
    for name, value in given.items():
        if name not in _READERS:
            raise ExpectationError(f"{path}: {name[:40]!r} is not one of {', '.join(_READERS)}")
        try:
            values[name] = _READERS[name](value)
        except ValueError as error:
            raise ExpectationError(f"{path}: {name} {error}") from None
    return Expected(**values)
