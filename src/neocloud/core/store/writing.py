# pyright: strict

"""Whether this thread is in the one write transaction, for which all other writers wait."""

import threading
from collections.abc import Generator
from contextlib import contextmanager


class _State(threading.local):
    depth = 0


_state = _State()


@contextmanager
def writing() -> Generator[None, None, None]:
    """Say so for as long as it is entered."""
    _state.depth += 1
    try:
        yield
    finally:
        _state.depth -= 1


@contextmanager
def reading_own() -> Generator[None, None, None]:
    """Around the parsing of what the cloud wrote itself: no tenant decides what it costs."""
    depth, _state.depth = _state.depth, 0
    try:
        yield
    finally:
        _state.depth = depth


def is_writing() -> bool:
    return _state.depth > 0


def refuse_while_writing(what: str) -> None:
    """Raise AssertionError inside a write transaction. For work whose cost a tenant decides."""
    assert not is_writing(), (
        f"{what} inside the write transaction keeps every tenant's writes waiting; do it before"
        " (Rules.request_violations)."
    )
