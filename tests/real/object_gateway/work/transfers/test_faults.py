"""Sources and destinations that fail: nothing is lost, stored half, or deleted for it."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from neocloud.object_gateway.work.transfers import copying, iteration, runner
from neocloud.object_gateway.work.transfers.follower import MOST_ITERATIONS
from neocloud.s3_client import http
from neocloud.testing.waiting import wait_until
from tests.fast.object_gateway.work.transfers.cloud import Transfers, numbers, outcome, phase
from tests.fast.object_gateway.work.transfers.endpoints import FakeEndpoint, fake_endpoint

BODY = bytes(range(256)) * 4096  # 1 MiB


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (copying, iteration):
        monkeypatch.setattr(module, "FIRST_WAIT_SECONDS", 0.001)


@pytest.fixture
def faulty(transfers: Transfers) -> Iterator[tuple[Transfers, FakeEndpoint]]:
    endpoint = FakeEndpoint(objects={"a": b"first", "b": BODY, "c": b"last"})
    with fake_endpoint(endpoint) as (url, _):
        transfers.source_url = url
        yield transfers, endpoint


@pytest.mark.parametrize("fault", ["500", "cut", "etag"])
def test_what_fails_for_a_while_is_tried_again(faulty: tuple[Transfers, FakeEndpoint], fault: str) -> None:
    transfers, endpoint = faulty
    endpoint.failing = {"b": [fault] * 3, "": ["500"] * 2}
    assert numbers(transfers.run()) == (3, len(BODY) + 9, 0)
    assert transfers.body("b") == BODY


@pytest.mark.parametrize(
    ("fault", "code"), [("500", "HTTP500"), ("cut", "IncompleteBody"), ("etag", "BadDigest")]
)
def test_an_object_that_keeps_failing_is_not_stored_and_the_others_are(
    faulty: tuple[Transfers, FakeEndpoint], monkeypatch: pytest.MonkeyPatch, fault: str, code: str
) -> None:
    monkeypatch.setattr(runner, "MOST_FAILURES", 1)
    transfers, endpoint = faulty
    endpoint.failing = {"b": [fault] * 1000}
    report = transfers.failed()
    assert report.error.code == code and report.error.message.startswith("'b': ")
    assert transfers.stored() == ["a", "c"] and numbers(report.last_iteration) == (2, 9, 0)


def test_tags_that_may_not_be_read_are_left_out(
    faulty: tuple[Transfers, FakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    transfers, endpoint = faulty
    monkeypatch.setattr(copying, "PART_BYTES", 5 * 1024**2)
    endpoint.objects["large"] = bytes(6 * 1024**2)
    assert numbers(transfers.run())[0] == 4
    assert {each.split()[1].rpartition("/")[2] for each in endpoint.seen} >= {"a?tagging=", "large?tagging="}
    assert transfers.tags("a") == transfers.tags("large") == {}


@pytest.mark.parametrize(
    "tags",
    [
        "<Tag><Key>a</Key><Value>b</Value></Tag>" * 11,
        "<Tag><Key></Key><Value>b</Value></Tag>",
        f"<Tag><Key>a</Key><Value>{'b' * 257}</Value></Tag>",
        "<Tag><Value>b</Value></Tag>",
        "<!DOCTYPE x>",
    ],
)
def test_hostile_tags_are_not_copied(faulty: tuple[Transfers, FakeEndpoint], tags: str) -> None:
    transfers, endpoint = faulty
    endpoint.tagging = f"<Tagging><TagSet>{tags}</TagSet></Tagging>".encode()
    assert transfers.failed().error.code == "InvalidResponse"
    assert transfers.stored() == []


def test_a_tag_cannot_become_another_header(faulty: tuple[Transfers, FakeEndpoint]) -> None:
    transfers, endpoint = faulty
    value = "a&amp;b=c&#13;&#10;x-amz-acl: public"
    endpoint.tagging = (
        f"<Tagging><TagSet><Tag><Key>k</Key><Value>{value}</Value></Tag></TagSet></Tagging>".encode()
    )
    assert numbers(transfers.run())[0] == 3
    assert transfers.tags("a") == {"k": "a&b=c\r\nx-amz-acl: public"}


def test_large_objects_are_verified_as_a_whole(
    faulty: tuple[Transfers, FakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "PART_BYTES", 5 * 1024**2)
    monkeypatch.setattr(runner, "MOST_FAILURES", 1)
    transfers, endpoint = faulty
    endpoint.objects = {"large": BODY * 12}
    assert numbers(transfers.run()) == (1, len(BODY) * 12, 0)
    assert transfers.body("large") == BODY * 12


def test_a_transfer_fails_only_after_several_iterations(faulty: tuple[Transfers, FakeEndpoint]) -> None:
    transfers, endpoint = faulty
    endpoint.failing = {"": ["500"] * copying.ATTEMPTS}
    transfer_id = transfers.start()
    report = transfers.ended(transfer_id)
    assert phase(report) == "FINISHED" and report.last_iteration.sequence_number == 2
    first = transfers.destination.control_plane.iterations[transfer_id, 1]
    assert outcome(first) == "FAILED" and first.error.code == "HTTP500"
    endpoint.status = 503
    report = transfers.failed()
    assert report.failures == report.last_iteration.sequence_number == runner.MOST_FAILURES


def test_an_object_that_goes_meanwhile_is_left_out(faulty: tuple[Transfers, FakeEndpoint]) -> None:
    transfers, endpoint = faulty
    endpoint.failing = {"b": ["gone"]}
    assert numbers(transfers.run()) == (2, 9, 0)


def test_a_slow_source_is_given_up(
    faulty: tuple[Transfers, FakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "Patience", partial(http.Patience, quiet=0.2))
    monkeypatch.setattr(runner, "MOST_FAILURES", 1)
    transfers, endpoint = faulty
    endpoint.failing = {"b": ["slow"] * 1000}
    assert transfers.failed().error.code == "RequestTimeout"


def test_slow_sources_of_one_tenant_keep_no_other_waiting(faulty: tuple[Transfers, FakeEndpoint]) -> None:
    transfers, endpoint = faulty
    endpoint.failing = {"b": ["slow"] * MOST_ITERATIONS}
    slow = [transfers.start() for _ in range(MOST_ITERATIONS + 1)]
    wait_until(lambda: not endpoint.failing["b"])
    assert numbers(transfers.run(tenant_id="tenant-b"))[0] >= 1
    assert transfers.body("b") == BODY
    begun = [transfers.when(each, bool).HasField("last_iteration") for each in slow]
    assert begun.count(True) == MOST_ITERATIONS
    endpoint.released.set()
    assert [phase(transfers.ended(each)) for each in slow] == ["FINISHED"] * len(slow)


def test_nothing_is_deleted_where_the_list_of_the_source_is_wrong(
    faulty: tuple[Transfers, FakeEndpoint],
) -> None:
    transfers, endpoint = faulty
    transfers.run()
    endpoint.list_body = b"<ListBucketResult></ListBucketResult>"
    every: dict[str, Any] = {"enable_deletes_in_destination": True, "touch_unmanaged": True}
    assert numbers(transfers.run(**every)) == (0, 0, 0)
    endpoint.list_body, endpoint.is_reversed = b"", True
    assert transfers.failed(**every).error.code == "InvalidResponse"
    assert transfers.stored() == ["a", "b", "c"]


def test_a_stop_interrupts_and_leaves_no_upload(
    faulty: tuple[Transfers, FakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "PART_BYTES", 5 * 1024**2)
    transfers, endpoint = faulty
    endpoint.objects = {"large": BODY * 12}
    transfer_id = transfers.start(limiters={"bandwidth_bytes_per_second": 2 * 1024**2})
    own = transfers.destination.client()
    transfers.when(transfer_id, lambda _: own.list_multipart_uploads(Bucket=transfers.bucket).get("Uploads"))

    def stop(desired: Any) -> None:
        desired.mode = 2

    transfers.change(transfer_id, stop)
    report = transfers.ended(transfer_id)
    assert phase(report) == "STOPPED" and outcome(report.last_iteration) == "INTERRUPTED"
    assert not own.list_multipart_uploads(Bucket=transfers.bucket).get("Uploads")
    assert transfers.stored() == []


def test_a_killed_gateway_goes_on_with_the_part(tmp_path: Path) -> None:
    """It runs in a process of its own, which is killed in the middle of a large object."""
    source = FakeEndpoint(objects={"a": b"small", "b": BODY * 16})
    home = tmp_path / "home"
    home.mkdir()
    with fake_endpoint(source) as (url, seen):
        command = [
            sys.executable,
            "-m",
            "tests.real.object_gateway.work.transfers.killed_gateway",
            str(home),
            url,
        ]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen([*command, "first"], **pipes) as first:
            assert first.stdout is not None
            assert first.stdout.readline() == "two parts are stored\n"
            first.send_signal(signal.SIGKILL)
        seen.clear()
        second = subprocess.run([*command, "second"], capture_output=True, text=True, timeout=60, check=True)
    assert second.stdout == f"FINISHED 1 COMPLETED 2 {len(BODY) * 16 + 5} 0 a b 5 {len(BODY) * 16}\n"
    ranges = re.findall(r"range: bytes=(\d+)-", "".join(seen), re.IGNORECASE)
    assert ranges and min(map(int, ranges)) >= 2 * 5 * 1024**2
