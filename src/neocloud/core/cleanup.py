"""Undoing what was begun where a block does not come to its end."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager


@contextmanager
def undo_on_error(undo: Callable[[], object]) -> Generator[None]:
    """Call `undo` where the block raises or is cancelled."""
    try:
        yield
    except BaseException:
        undo()
        raise


@asynccontextmanager
async def aundo_on_error(undo: Callable[[], Awaitable[object]]) -> AsyncGenerator[None]:
    """Await `undo` where the block raises or is cancelled."""
    try:
        yield
    except BaseException:
        await undo()
        raise
