"""Transfers between two real object stores: what is copied, replaced, deleted and counted."""

from typing import Any

import pytest

from neocloud.object_gateway.work.transfers import copying
from tests.fast.object_gateway.work.transfers.cloud import Transfers, numbers, outcome, phase

MARK = "neocloud-transfer"


def test_objects_come_with_their_metadata(transfers: Transfers) -> None:
    transfers.put("a/1.txt", b"one", ContentType="text/plain", Metadata={"by": "test"})
    transfers.put("a/b c+%20ü\t.txt", b"")
    transfers.put("z", b"last")
    iteration = transfers.run()
    assert (outcome(iteration), iteration.sequence_number) == ("COMPLETED", 1)
    assert numbers(iteration) == (3, 7, 0)
    assert transfers.stored() == ["a/1.txt", "a/b c+%20ü\t.txt", "z"]
    found = transfers.destination.client().get_object(Bucket=transfers.bucket, Key="a/1.txt")
    assert (found["Body"].read(), found["ContentType"]) == (b"one", "text/plain")
    assert found["Metadata"]["by"] == "test" and found["Metadata"][MARK].startswith("storagetransfer-")


def test_tags_are_copied(transfers: Transfers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "PART_BYTES", 5 * 1024**2)
    transfers.put("small", b"1", Tagging="team=a%26b&empty=&%C3%BC=%2B%20x")
    transfers.put("large", bytes(6 * 1024**2), Tagging="kept=yes")
    transfers.put("plain", b"1")
    assert numbers(transfers.run())[0] == 3
    assert transfers.tags("small") == {"team": "a&b", "empty": "", "ü": "+ x"}
    assert transfers.tags("large") == {"kept": "yes"} and transfers.tags("plain") == {}


def test_prefixes_are_replaced(transfers: Transfers) -> None:
    for key in ("logs/1", "logs/2/x", "other"):
        transfers.put(key)
    assert numbers(transfers.run(source_prefix="logs/", destination_prefix="copy/"))[0] == 2
    assert transfers.stored() == ["copy/1", "copy/2/x"]


def test_a_second_iteration_copies_what_is_new_or_newer(transfers: Transfers) -> None:
    transfers.put("same", b"1")
    transfers.put("changed", b"1")
    assert numbers(transfers.run())[0] == 2
    transfers.put("changed", b"22")
    transfers.put("new", b"333")
    assert numbers(transfers.run()) == (2, 5, 0)
    assert transfers.body("changed") == b"22"
    assert numbers(transfers.run()) == (0, 0, 0)


def test_never_leaves_what_exists(transfers: Transfers) -> None:
    transfers.put("key", b"1")
    transfers.run(overwrite_strategy="NEVER")
    transfers.put("key", b"22")
    assert numbers(transfers.run(overwrite_strategy="NEVER", touch_unmanaged=True)) == (0, 0, 0)
    assert transfers.body("key") == b"1"


def test_objects_of_others_are_touched_only_where_it_is_allowed(transfers: Transfers) -> None:
    own = transfers.destination.client()
    for key in ("both", "only-here"):
        own.put_object(Bucket=transfers.bucket, Key=key, Body=b"mine")
    transfers.put("both", b"theirs")
    assert numbers(transfers.run(enable_deletes_in_destination=True)) == (0, 0, 0)
    assert transfers.body("both") == transfers.body("only-here") == b"mine"
    every = {"enable_deletes_in_destination": True, "touch_unmanaged": True}
    assert numbers(transfers.run(**every)) == (1, 6, 1)
    assert transfers.stored() == ["both"] and transfers.body("both") == b"theirs"


def test_what_the_source_has_no_more_is_deleted(transfers: Transfers) -> None:
    for key in ("a", "b", "c"):
        transfers.put(key)
    transfers.run()
    for key in ("a", "c"):
        transfers.source.client().delete_object(Bucket=transfers.source_bucket, Key=key)
    assert numbers(transfers.run()) == (0, 0, 0)
    assert numbers(transfers.run(enable_deletes_in_destination=True)) == (0, 0, 2)
    assert transfers.stored() == ["b"]


def test_large_objects_go_in_parts(transfers: Transfers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "PART_BYTES", 5 * 1024**2)
    body = bytes(range(256)) * (48 * 1024)  # 12 MiB: two parts and a rest
    transfers.put("large", body, Metadata={"by": "test"})
    assert numbers(transfers.run()) == (1, len(body), 0)
    assert transfers.body("large") == body
    found = transfers.destination.client().head_object(Bucket=transfers.bucket, Key="large")
    assert found["ETag"].endswith('-3"') and found["Metadata"]["by"] == "test"


def test_it_stops_after_empty_iterations(transfers: Transfers) -> None:
    transfers.put("key")
    transfer_id = transfers.start(after_n_empty_iterations={"empty_iterations_threshold": 2})
    report = transfers.ended(transfer_id)
    assert phase(report) == "FINISHED" and report.last_iteration.sequence_number == 3
    kept = transfers.destination.control_plane.iterations
    copied = [kept[transfer_id, n].objects_transferred_count for n in (1, 2, 3)]
    assert copied == [1, 0, 0]


def test_stop_resume_and_removal(transfers: Transfers) -> None:
    transfer_id = transfers.start(infinite={}, inter_iteration_interval="3600s")
    transfers.when(transfer_id, lambda found: outcome(found.last_iteration) == "COMPLETED")

    def stop(desired: Any) -> None:
        desired.mode = 2

    transfers.change(transfer_id, stop)
    report = transfers.when(transfer_id, lambda found: found.applied_generation == 2)
    assert phase(report) == "STOPPED"
    transfers.put("later")

    def resume(desired: Any) -> None:
        desired.mode, desired.run = 1, 2

    transfers.change(transfer_id, resume)
    transfers.when(transfer_id, lambda found: found.run == 2 and found.last_iteration.sequence_number == 2)
    transfers.when(transfer_id, lambda found: outcome(found.last_iteration) == "COMPLETED")
    assert transfers.stored() == ["later"]

    def remove(desired: Any) -> None:
        desired.mode = 3

    transfers.change(transfer_id, remove)
    transfers.when(transfer_id, lambda found: phase(found) == "REMOVED")


def test_wrong_keys_and_buckets_are_the_tenant_s_to_fix(transfers: Transfers) -> None:
    transfers.put("key")
    bucket, transfers.source_bucket = transfers.source_bucket, "bucket-of-nobody"
    report = transfers.failed()
    assert (report.error.origin, report.error.code) == (1, "NoSuchBucket")
    assert outcome(report.last_iteration) == "FAILED" and report.last_iteration.error == report.error
    transfers.source_bucket, transfers.bucket = bucket, "bucket-of-nobody"
    assert transfers.failed().error.code == "NoSuchBucket" and transfers.failed().error.origin == 2


def test_the_rights_are_those_of_the_access_keys(transfers: Transfers) -> None:
    transfers.put("key")
    readers = frozenset({"storage.buckets.get", "storage.objects.get", "storage.objects.list"})
    reader = transfers.destination.account(permissions=readers)
    owner, transfers.destination.owner = transfers.destination.owner, reader
    try:
        report = transfers.failed()
    finally:
        transfers.destination.owner = owner
    assert (report.error.origin, report.error.code) == (2, "AccessDenied")
    assert transfers.stored() == []


def test_a_bandwidth_limit_holds(transfers: Transfers) -> None:
    transfers.put("key", bytes(300_000))
    iteration = transfers.run(limiters={"bandwidth_bytes_per_second": 200_000})
    seconds = (iteration.end_time.ToDatetime() - iteration.start_time.ToDatetime()).total_seconds()
    assert seconds > 1.0
    assert 0 < iteration.average_throughput_bytes <= 300_000
