"""Runs that cannot be, and processes that are killed: there is no half report, and nothing is left behind."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neocloud.data_plane.control_plane_client import ControlPlaneUnavailable
from neocloud.object_gateway.work.inventories import run, runner
from neocloud.testing.object_control_plane import PERMISSIONS
from tests.fast.object_gateway.s3.served import Served, serving
from tests.fast.object_gateway.work.inventories.cloud import Inventories, error
from tests.real.object_gateway.work.inventories.killed_gateway import KEYS, ROWS_PER_FILE, kept


def put_many(inventories: Inventories, number: int = 10) -> list[str]:
    keys = [f"key-{each:03d}" for each in range(number)]
    for key in keys:
        inventories.put(key, b"")
    return keys


@pytest.mark.parametrize(
    ("lacking", "fields"),
    [("storage.objects.list", []), ("storage.objects.create", []), ("storage.objects.get", ["TAGS"])],
)
def test_an_account_without_the_rights_gets_no_report(
    inventories: Inventories, lacking: str, fields: list[str]
) -> None:
    inventories.put("a")
    account = inventories.served.account(permissions=PERMISSIONS - {lacking})
    inventory_id = inventories.start(subject_id=account.subject_id, optional_fields=fields)
    inventories.failed(inventory_id, "PERMISSION_DENIED")


def test_an_account_of_another_project_gets_no_report(inventories: Inventories) -> None:
    inventories.put("a")
    outsider = inventories.served.account(project_id="project-b")
    inventories.failed(inventories.start(subject_id=outsider.subject_id), "PERMISSION_DENIED")
    inventories.failed(inventories.start(subject_id="nobody"), "PERMISSION_DENIED")


def test_rights_that_go_meanwhile_end_the_run_and_its_files_go(
    inventories: Inventories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "ROWS_PER_FILE", 2)
    put_many(inventories)
    account = inventories.served.account()
    revoked, stored = [], run.InventoryRun._write_file

    async def write(self: Any, row: Any) -> Any:
        after = await stored(self, row)
        if len(self._records.files(self._id)) == 2:
            account.permissions = frozenset()
            revoked.extend(each.key.decode() for each in self._records.files(self._id))
        return after

    monkeypatch.setattr(run.InventoryRun, "_write_file", write)
    inventory_id = inventories.start(subject_id=account.subject_id)
    inventories.failed(inventory_id, "PERMISSION_DENIED")
    assert len(revoked) == 2


def test_a_run_that_failed_is_tried_again_once_the_inventory_is_changed(inventories: Inventories) -> None:
    inventories.put("a")
    account = inventories.served.account(permissions=frozenset())
    inventory_id = inventories.start(subject_id=account.subject_id)
    inventories.failed(inventory_id, "PERMISSION_DENIED")

    def change(desired: Any) -> None:
        desired.subject_id = inventories.served.owner.subject_id

    inventories.change(inventory_id, change)
    inventories.when(inventory_id, lambda found: found.status.HasField("last_success"))
    assert inventories.report(inventory_id).names == ["a"]


def test_a_full_destination(inventories: Inventories, served: Served) -> None:
    put_many(inventories)

    def shrink(bucket: Any) -> None:
        bucket.spec.max_size_bytes = 100

    served.call(served.control_plane.change(inventories.destination, shrink))
    inventories.failed(inventories.start(), "QUOTA_EXCEEDED")


def test_buckets_that_are_gone(inventories: Inventories, served: Served) -> None:
    source, owner = inventories.source, served.owner.aws_access_key_id
    desired = served.control_plane.named(inventories.destination)
    inventory_id = inventories.start(enabled=False)
    served.call(served.control_plane.delete_bucket(owner, desired.id))

    def enable(desired: Any) -> None:
        desired.spec.enabled = True

    inventories.change(inventory_id, enable)
    inventories.when(inventory_id, lambda found: error(found) == "DESTINATION_BUCKET_NOT_FOUND")
    inventories.destination = served.make_bucket()
    inventory_id = inventories.start(enabled=False)
    served.call(served.control_plane.delete_bucket(owner, served.control_plane.named(source).id))
    inventories.change(inventory_id, enable)
    inventories.failed(inventory_id, "INVALID_INTENT")


def test_another_object_in_the_place_of_the_manifest_stays(
    inventories: Inventories, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventories.put("a")
    client, planted = inventories.served.client(), run.InventoryRun._write_manifest

    async def plant(self: Any, row: Any) -> None:
        put = self._put

        async def put_after(key: str, body: bytes, content_type: str) -> None:
            await put(key, b"theirs", "text/plain")
            await put(key, body, content_type)

        self._put = put_after
        await planted(self, row)

    monkeypatch.setattr(run.InventoryRun, "_write_manifest", plant)
    inventory_id = inventories.start()
    inventories.when(inventory_id, lambda found: error(found) == "INVALID_INTENT")
    (key,) = [each for each in inventories.keys(inventories.destination) if inventory_id in each]
    assert client.get_object(Bucket=inventories.destination, Key=key)["Body"].read() == b"theirs"


def test_the_control_plane_may_be_away_for_a_while(
    inventories: Inventories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "ROWS_PER_FILE", 2)
    monkeypatch.setattr(runner, "AWAY_SECONDS", 0.01)
    keys = put_many(inventories)
    known, asked = inventories.served.control_plane, []
    authorize, account = known.authorize, inventories.served.account()

    async def sometimes(subject_id: str, target_id: str, proof: str = "") -> frozenset[str]:
        if subject_id == account.subject_id:
            asked.append(target_id)
            if len(asked) % 3 == 0:
                raise ControlPlaneUnavailable("it is away")
        return await authorize(subject_id, target_id, proof)

    monkeypatch.setattr(known, "authorize", sometimes)
    written = inventories.written(subject_id=account.subject_id)
    assert written.names == keys and len(written.manifest["files"]) == 5 and len(asked) > 10


def test_a_removed_inventory_leaves_its_reports_and_no_more(inventories: Inventories) -> None:
    inventories.put("a")
    written = inventories.written()
    inventory_id = written.key.split("/")[-3]
    before = inventories.keys(inventories.destination)

    def remove(desired: Any) -> None:
        desired.is_removed = True

    inventories.change(inventory_id, remove)
    inventories.when(inventory_id, lambda found: found.is_removed)
    assert inventories.keys(inventories.destination) == before


@pytest.mark.parametrize(("place", "stored"), [("data", "2 0"), ("unremembered", "3 0"), ("manifest", "4 1")])
def test_a_killed_gateway_goes_on_and_lists_each_object_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, stored: str
) -> None:
    """It runs in a process of its own, which is killed within the run; this one continues."""
    command = [
        sys.executable,
        "-m",
        "tests.real.object_gateway.work.inventories.killed_gateway",
        str(tmp_path),
        place,
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        said = first.stdout.readline().strip()
        first.send_signal(signal.SIGKILL)
    assert said == stored
    monkeypatch.setattr(run, "ROWS_PER_FILE", ROWS_PER_FILE)
    known, source, destination, inventory_id = kept(tmp_path)
    with serving(tmp_path, control_plane=known) as served:
        inventories = Inventories(served, source, destination)
        written = inventories.report(inventory_id)
        assert written.names == KEYS and len(written.manifest["files"]) == 4
        assert len(inventories.keys(destination)) == 4 + 2
