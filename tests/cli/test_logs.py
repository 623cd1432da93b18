"""`neo logs`: text and JSON lines, filters, rotation, following."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from neocloud.cli.commands.logs import lines, records, start_of
from neocloud.cli.machine.home import Home
from neocloud.client.errors import ClientError
from tests.cli.conftest import Neo

TEXT = """\
2026-11-20 08:00:00,100 INFO neocloud.server: Listening on 127.0.0.1:7370
2026-11-20 08:00:01,200 ERROR neocloud.core.reconcile.run: [computeinstance-e00web] Step "start" failed
Traceback (most recent call last):
ValueError: no disk
2026-11-20 08:00:02,300 WARNING neocloud.core.reconcile.run: [computeinstance-e00web2] Step "start" waits
"""


def json_line(message: str, **fields: str) -> str:
    known = {"time": "2026-11-20T08:00:03+00:00", "level": "INFO", "logger": "neocloud.server"}
    return json.dumps({**known, "message": message, **fields})


@pytest.fixture
def log(neo: Neo, user_folders: Path) -> Path:
    file = Home(user_folders / "state").log_file
    file.parent.mkdir(parents=True)
    file.write_text(TEXT)
    return file


def test_the_log_is_printed_as_it_is(neo: Neo, log: Path) -> None:
    ran = neo("logs")
    assert (ran.code, ran.out) == (0, TEXT)


def test_a_resource_selects_its_records_with_their_tracebacks(neo: Neo, log: Path) -> None:
    ran = neo("logs", "computeinstance-e00web")
    assert ran.out.splitlines() == TEXT.splitlines()[1:4]


def test_level_and_time_select_records(neo: Neo, log: Path) -> None:
    assert neo("logs", "--level", "warning").out.splitlines() == TEXT.splitlines()[1:]
    log.write_text(json_line("early") + "\n" + json_line("late", time="2026-11-21T08:00:00+00:00") + "\n")
    assert "early" not in neo("logs", "--since", "2026-11-20T09:00:00").out
    assert neo("logs", "--since", "2026-11-20T09:00:00").out.endswith("neocloud.server: late\n")


def test_json_lines_are_printed_unchanged_as_json_and_readable_as_text(neo: Neo, log: Path) -> None:
    line = json_line("Started", resource="computedisk-e00a", request_id="r1")
    log.write_text(f"{line}\n{json_line('other')}\n")
    assert neo("logs", "computedisk-e00a", "--output", "json").out == f"{line}\n"
    expected = "2026-11-20T08:00:03+00:00 INFO neocloud.server: [computedisk-e00a] [r1] Started\n"
    assert neo("logs", "computedisk-e00a").out == expected


def test_text_lines_become_json_objects(neo: Neo, log: Path) -> None:
    found = [json.loads(line) for line in neo("logs", "--output", "json").out.splitlines()]
    assert [record["level"] for record in found] == ["INFO", "ERROR", "WARNING"]
    assert "ValueError: no disk" in found[1]["message"]


def test_the_rotated_file_comes_first(neo: Neo, log: Path) -> None:
    log.replace(log.with_name("server.log.1"))
    log.write_text(json_line("new") + "\n")
    assert neo("logs").out.startswith(TEXT)
    assert neo("logs").out.endswith("new\n")


def test_a_missing_log_names_the_folder(neo: Neo, user_folders: Path) -> None:
    ran = neo("logs")
    assert ran.code == 3
    assert f"There is no log in {user_folders / 'state'}" in ran.err


def test_no_line_is_said_on_stderr(neo: Neo, log: Path) -> None:
    ran = neo("logs", "slurmcluster-e00none")
    assert (ran.code, ran.out, ran.err) == (0, "", "The log has no such lines.\n")


def test_following_reads_new_lines_and_the_new_file_after_a_rotation(tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    file.write_text('{"message": "one"}\n')
    steps: Iterator[str] = iter(["append", "rotate"])

    def sleep(seconds: float) -> None:
        if next(steps) == "append":
            with file.open("a") as log:
                log.write('{"message": "two"}\n')
        else:
            file.replace(file.with_name("server.log.1"))
            file.write_text('{"message": "three"}\n')

    found = records(lines(file, follow=True, sleep=sleep))
    assert [next(found).fields["message"] for _ in range(3)] == ["one", "two", "three"]


def test_start_is_a_span_or_a_time() -> None:
    now = datetime(2026, 11, 20, 8, tzinfo=UTC)
    assert start_of("15m", now) == now - timedelta(minutes=15)
    assert start_of("2026-11-20", now) == datetime(2026, 11, 20, tzinfo=UTC)
    with pytest.raises(ClientError, match="not a time"):
        start_of("yesterday", now)
