"""Loops that no error ends, and undoing on errors; the number of places that catch everything is bounded."""

import asyncio
import logging
import re
from pathlib import Path

import pytest

from neocloud.core.cleanup import aundo_on_error, undo_on_error
from neocloud.core.loops import every
from neocloud.testing.waiting import FakeClock

SOURCE = Path(__file__).resolve().parents[3] / "src" / "neocloud"
MOST_BROAD_EXCEPTS = 46
"""`except Exception` and `except BaseException`: borders of requests, loops and threads. Repeat work with
`neocloud.core.loops`, and undo what was begun with `neocloud.core.cleanup`."""

BROAD = re.compile(r" +except( (Base)?Exception\b.*)?:")


class _Ended(BaseException):
    """Ends the loop of a test: it is not an Exception."""


async def _lines(
    results: list[Exception | None], caplog: pytest.LogCaptureFixture, *, is_first_now: bool = True
) -> list[tuple[int, str, bool]]:
    """Return level, text and whether there was a traceback, for rounds that come to these results."""
    clock, left = FakeClock(), iter(results)

    async def work() -> None:
        result = next(left, _Ended())
        if result is not None:
            raise result

    loop = every(1, work, "Toys stay", clock, expected=(OSError,), is_first_now=is_first_now)
    with caplog.at_level(logging.INFO):
        running = asyncio.ensure_future(loop)
        await clock.run_until(running.done)
    assert isinstance(running.exception(), _Ended)
    return [(each.levelno, each.getMessage(), bool(each.exc_info)) for each in caplog.records]


async def test_a_loop_says_once_that_it_fails_and_once_that_it_works_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    full = OSError("disk full")
    assert await _lines([full, full, None, None, full], caplog) == [
        (logging.WARNING, "Toys stay: disk full", False),
        (logging.INFO, "Toys stay: this has ended", False),
        (logging.WARNING, "Toys stay: disk full", False),
    ]


async def test_an_error_that_nobody_expected_has_a_traceback_and_ends_no_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert await _lines([KeyError(), OSError("disk full"), None], caplog, is_first_now=False) == [
        (logging.ERROR, "Toys stay: KeyError", True),
        (logging.WARNING, "Toys stay: disk full", False),
        (logging.INFO, "Toys stay: this has ended", False),
    ]


async def test_what_was_begun_is_undone_where_a_block_does_not_end() -> None:
    undone: list[str] = []

    async def undo() -> None:
        undone.append("async")

    async def wait() -> None:
        with undo_on_error(lambda: undone.append("sync")):
            async with aundo_on_error(undo):
                await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert undone == ["async", "sync"]
    with undo_on_error(lambda: undone.append("again")):
        pass
    async with aundo_on_error(undo):
        pass
    assert undone == ["async", "sync"]


def test_few_places_catch_every_error() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{number}"
        for path in sorted(SOURCE.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if BROAD.match(line)
    ]
    assert 2 < len(found) <= MOST_BROAD_EXCEPTS, found
