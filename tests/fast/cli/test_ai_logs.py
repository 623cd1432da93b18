"""`neo ai endpoint logs` and `neo ai job logs`: pages, following, and what a program may do to a terminal."""

from collections.abc import Iterator
from typing import Any

import pytest

from neocloud.cli.commands import ai_workloads
from neocloud.cli.resources.lookup import AI_JOBS, ENDPOINTS
from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import PROJECT, FakeServer
from tests.fast.cli.screen import on_screen
from tests.fast.cli.test_workload_log import AI_LOGS, serve_names, serve_program

HOSTILE = ("\x1b]0;owned\x07title", "\x1b[2Jcleared", "over\rwritten", "\u202ereversed", "\x9b31mred")


@pytest.fixture
def served(cloud: FakeServer) -> FakeServer:
    serve_names(cloud, ENDPOINTS, "web")
    serve_names(cloud, AI_JOBS, "nightly")
    return cloud


def serve_pages(cloud: FakeServer, verb: str, *pages: dict[str, Any]) -> None:
    left: Iterator[dict[str, Any]] = iter(pages)
    path = f"{AI_LOGS}/{verb}"
    cloud.serve(path, lambda request: contract.method(path).output(**next(left)))


def test_the_last_lines_are_one_question(signed_in: Neo, served: FakeServer) -> None:
    serve_program(served, "ReadEndpointLog", "one", "two", "three")
    assert signed_in("ai", "endpoint", "logs", "web", "--tail", "2").out == "two\nthree\n"
    [asked] = served.asked(f"{AI_LOGS}/ReadEndpointLog")
    assert asked.tail == 2
    assert signed_in("ai", "endpoint", "logs", "web").out == "one\ntwo\nthree\n"


def test_a_log_is_followed_over_a_restart_until_the_job_has_ended(
    signed_in: Neo, served: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ai_workloads, "FOLLOW_SECONDS", 0.0)
    serve_pages(
        served,
        "ReadJobLog",
        {"reason": "the image is being pulled"},
        {"reason": "the image is being pulled"},
        {"lines": ["epoch 1"], "next_line": 1, "run": "1-1"},
        {"next_line": 1, "run": "1-1"},
        {"lines": ["epoch 1 again"], "next_line": 1, "run": "1-2"},
        {"lines": ["done"], "next_line": 2, "run": "1-2"},
        {"next_line": 2, "run": "1-2", "is_complete": True, "reason": "main ended with code 3."},
    )
    ran = signed_in("ai", "job", "logs", "nightly", "--follow")
    assert ran.code == 0 and ran.out == "epoch 1\nepoch 1 again\ndone\n"
    assert ran.err.splitlines() == [
        "the image is being pulled",
        "It was started again; this is the log of the new run.",
        "main ended with code 3.",
    ]
    asked = served.asked(f"{AI_LOGS}/ReadJobLog")
    assert [(each.first_line, each.run) for each in asked[3:5]] == [(1, "1-1"), (1, "1-1")]


def test_what_has_not_started_says_why_and_is_no_empty_log(signed_in: Neo, served: FakeServer) -> None:
    serve_pages(served, "ReadJobLog", {"reason": "There is no image tool:v9 in registry team."})
    ran = signed_in("ai", "job", "logs", "nightly")
    assert ran.code == 0 and not ran.out
    assert ran.err.splitlines() == ["There is no image tool:v9 in registry team.", "It has printed nothing."]
    serve_pages(served, "ReadJobLog", {"is_complete": True})
    assert "No log of an earlier run is kept." in signed_in("ai", "job", "logs", "nightly", "--previous").err
    assert served.asked(f"{AI_LOGS}/ReadJobLog")[-1].previous


@pytest.mark.parametrize("command", [("ai", "job", "logs", "nightly"), ("logs", "nightly", "--workload")])
def test_a_program_cannot_write_to_the_terminal_of_who_reads_it(
    signed_in: Neo, served: FakeServer, command: tuple[str, ...]
) -> None:
    serve_program(served, "ReadJobLog", *HOSTILE, is_complete=True)
    shown = on_screen(80, lambda: signed_in(*command))
    assert "\\x1b]0;owned\\x07title" in shown and "\\x1b[2Jcleared" in shown and "\\u202ereversed" in shown
    assert not set("\x1b\x07\x9b\u202e\r") & set(shown), ascii(shown)


def test_a_name_that_is_none_lists_those_that_are(signed_in: Neo, served: FakeServer) -> None:
    path = f"{AI_JOBS}/List"
    job = {"metadata": {"id": "aijob-e00nightly", "name": "nightly", "parent_id": PROJECT}}
    served.serve(path, contract.from_dict(contract.method(path).output, {"items": [job]}))
    ran = signed_in("ai", "job", "logs", "lost")
    assert ran.code == 3 and "There is no job 'lost'" in ran.err and "nightly" in ran.err


def test_a_refusal_is_the_cloud_s(signed_in: Neo, served: FakeServer) -> None:
    def refuse(request: Any) -> Any:
        raise contract.permission_denied("ai.jobs.readLog", request.id)

    served.serve(f"{AI_LOGS}/ReadJobLog", refuse)
    ran = signed_in("ai", "job", "logs", "nightly")
    assert ran.code == 4 and "ai.jobs.readLog" in ran.err
