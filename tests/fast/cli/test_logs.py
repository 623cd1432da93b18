"""`neo logs`: text and JSON lines, filters, rotation, following."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from neocloud.cli.commands import logs
from neocloud.cli.commands.server_log import lines, records, start_of
from neocloud.cli.machine.home import Home
from neocloud.cli.resources.lookup import PROJECTS
from neocloud.client.errors import ClientError
from neocloud.client.profiles import config_file, read_profiles
from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import FIND, PROJECT, FakeServer, found_resource, serve_search

GET_TENANT = "nebius.iam.v1.TenantService/Get"
OTHER = "project-e00other"

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
    ran = neo("logs", "computeinstance-e00web", "--control-plane")
    assert ran.out.splitlines() == TEXT.splitlines()[1:4]
    assert "What runs in it prints: neo logs computeinstance-e00web\n" in ran.err


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
    assert neo("logs", "computedisk-e00a", "-c").out == expected


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
    ran = neo("logs", "slurmcluster-e00none", "--control-plane")
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


@pytest.mark.parametrize("since", ["9999999d", "999999999999999d", f"{'9' * 5000}d"])
def test_a_span_before_all_time_is_refused(signed_in: Neo, cloud: FakeServer, log: Path, since: str) -> None:
    cloud.serve(GET_TENANT, contract.method(GET_TENANT).output())
    for command in (("logs",), ("audit", "list")):
        ran = signed_in(*command, "--since", since)
        assert ran.code == 2 and "is too long ago" in ran.err, ran.err


@pytest.fixture
def running(signed_in: Neo, cloud: FakeServer, log: Path, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """The server of the state folder runs; it has a machine `web-server` in each of two projects."""
    profile = read_profiles(config_file()).get("test")
    monkeypatch.setattr(Home, "server", lambda self: object())
    monkeypatch.setattr(logs, "profile_of_home", lambda *_: profile)
    kind = "nebius.compute.v1.Instance"
    mine, others = ("computeinstance-e00web", PROJECT), ("computeinstance-e00web2", OTHER)
    serve_search(
        cloud, *(found_resource(kind, identifier, "web-server", of) for identifier, of in (mine, others))
    )

    def project(request: Any) -> Any:
        if request.name != "other":
            raise contract.not_found("project", request.name)
        made = contract.method(f"{PROJECTS}/GetByName").output()
        made.metadata.id = OTHER
        return made

    cloud.serve(f"{PROJECTS}/GetByName", project)
    return cloud


def test_a_name_is_looked_up_with_one_call(neo: Neo, running: FakeServer, log: Path) -> None:
    assert neo("logs", "web-server", "--home", str(log.parents[1])).code == 0
    assert [path for path, _, _ in running.requests if "Exchange" not in path] == [FIND]


def test_a_server_without_a_search_gives_the_lines_with_the_name(
    neo: Neo, running: FakeServer, log: Path
) -> None:
    del running.methods[FIND]
    log.write_text(f"{TEXT}{json_line('web-server is new')}\n")
    ran = neo("logs", "web-server", "--home", str(log.parents[1]))
    assert ran.code == 0 and ran.out.endswith("web-server is new\n") and len(ran.out.splitlines()) == 1


def test_a_name_with_a_hyphen_selects_the_records_of_its_id(neo: Neo, running: FakeServer, log: Path) -> None:
    ran = neo("logs", "web-server", "--home", str(log.parents[1]))
    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == TEXT.splitlines()[1:4]


@pytest.mark.parametrize("project", [OTHER, "other"])
def test_a_name_is_looked_up_in_the_project(neo: Neo, running: FakeServer, log: Path, project: str) -> None:
    ran = neo("logs", "web-server", "--project", project, "--home", str(log.parents[1]))
    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == TEXT.splitlines()[4:]


def test_an_id_is_not_looked_up(neo: Neo, running: FakeServer, log: Path) -> None:
    ran = neo("logs", "computeinstance-e00web", "--home", str(log.parents[1]))
    assert ran.out.splitlines() == TEXT.splitlines()[1:4] and not running.requests


SEARCHES = "".join(
    f"2026-11-20 08:00:0{second},000 INFO neocloud.server.pipeline [2d54]: '{service}/GetByName' NOT_FOUND:"
    f' "There is no {noun} {name!r} here, or you may not see it. Check the id and the project."\n'
    for second, (service, noun, name) in enumerate(
        (
            ("nebius.compute.v1.FilesystemService", "filesystem", "web-server"),
            ("nebius.ai.v1.JobService", "job", "nosuchthing"),
            ("neocloud.slurm.v1.ClusterService", "cluster", "gone"),
        )
    )
)


def test_searches_for_the_name_are_no_lines_about_it(neo: Neo, running: FakeServer, log: Path) -> None:
    """FI-7: a client that asks each service for the name leaves a line for each."""
    log.write_text(
        TEXT
        + SEARCHES
        + json_line("'a.v1.B/GetByName' NOT_FOUND: 'web-server'", logger="neocloud.server.pipeline")
    )
    ran = neo("logs", "web-server", "--home", str(log.parents[1]))
    assert ran.code == 0 and ran.out.splitlines()[:3] == TEXT.splitlines()[1:4]
    assert "FilesystemService" not in ran.out
    assert "FilesystemService" in neo("logs", "--home", str(log.parents[1])).out


@pytest.mark.parametrize("options", [(), ("--follow",), ("-o", "json")])
def test_a_name_that_nothing_has_is_not_found(
    neo: Neo, running: FakeServer, log: Path, options: tuple[str, ...]
) -> None:
    log.write_text(TEXT + SEARCHES)
    ran = neo("logs", "nosuchthing", "--home", str(log.parents[1]), *options)
    assert ran.code == 3 and not ran.out
    assert "There is no resource 'nosuchthing'" in ran.err


def test_lines_about_what_was_deleted_are_printed(neo: Neo, running: FakeServer, log: Path) -> None:
    log.write_text(
        TEXT + SEARCHES + "2026-11-20 08:00:09,000 INFO neocloud.services.slurm: [gone] is deleted\n"
    )
    ran = neo("logs", "gone", "--home", str(log.parents[1]), "--follow")
    assert ran.code == 0 and ran.out.splitlines()[0].endswith("[gone] is deleted")
    assert len(ran.out.splitlines()) == 1 and "There is no resource 'gone' any more." in ran.err


def test_a_refused_call_about_it_is_still_printed(neo: Neo, running: FakeServer, log: Path) -> None:
    refused = "2026-11-20 08:00:09,000 INFO neocloud.server.pipeline [2d55]: 'a.v1.InstanceService/Get'"
    log.write_text(f"{refused} NOT_FOUND: \"There is no 'computeinstance-e00web' here\"\n")
    assert len(neo("logs", "web-server", "--home", str(log.parents[1])).out.splitlines()) == 1
