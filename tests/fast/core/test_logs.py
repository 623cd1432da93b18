"""Lines of the log: their form, level, and the fields that a task binds."""

import json
import logging
from collections.abc import Callable, Iterator

import pytest

from neocloud.core.logs import bind, bind_more, set_up_logging

logger = logging.getLogger("neocloud.test")


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    root, ours = logging.getLogger(), logging.getLogger("neocloud")
    before = (root.handlers[:], root.level, ours.level)
    yield lambda: capsys.readouterr().err
    root.handlers[:], root.level = before[0], before[1]
    ours.setLevel(before[2])


def test_a_line_of_text_shows_what_is_bound(output: Callable[[], str]) -> None:
    set_up_logging("info", "text")
    with bind(request_id="r1", method="/a"):
        logger.info("changed", extra={"resource": "disk-1", "attempt": 2})
    logger.info("idle")
    first, second = output().splitlines()
    assert first.endswith("INFO neocloud.test [disk-1 2 r1]: changed")
    assert second.endswith("INFO neocloud.test: idle")


FORGED = "full\n2026-11-29 10:00:00 ERROR neocloud.iam: all is lost\r\x1b[2J\x9b\u2028end\tof it"


def test_what_a_message_quotes_cannot_look_like_another_line(output: Callable[[], str]) -> None:
    """Nodes, images and users write texts that the lines of our log quote."""
    set_up_logging("info", "text")
    logger.info("drained: %s", FORGED, extra={"resource": "node\n1"})
    (line,) = output().splitlines()
    assert line.endswith(r": all is lost\r\x1b[2J\x9b\u2028end" + "\tof it")
    assert r" [node\n1]: drained: full\n2026-11-29" in line


def test_a_traceback_keeps_its_lines(output: Callable[[], str]) -> None:
    set_up_logging("info", "text")
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("it failed")
    assert len(output().splitlines()) > 3


def test_a_line_of_json_has_the_fields(output: Callable[[], str]) -> None:
    set_up_logging("debug", "json")
    with bind(request_id="r1"):
        bind_more(subject="account-1")
        logger.debug("%s done", "it", extra={"duration_ms": 12, "result": "done"})
    line = json.loads(output())
    assert line.pop("time")
    assert line == {
        "level": "debug",
        "logger": "neocloud.test",
        "message": "it done",
        "request_id": "r1",
        "subject": "account-1",
        "duration_ms": 12,
        "result": "done",
    }


def test_the_level_is_that_of_our_loggers(output: Callable[[], str]) -> None:
    set_up_logging("warning", "text")
    logger.info("not shown")
    logging.getLogger("other").info("not shown")
    logger.warning("shown")
    assert output().count("shown") == 1
