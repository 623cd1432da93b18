"""A filesystem becomes a volume, grows, fails and goes; against the fake engine."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from neocloud.messages.nebius.compute.v1 import FilesystemStatus

from neocloud.engines.base import EngineError, EngineUnavailable, Observation, Reference
from neocloud.engines.manifest import Manifest, Namespace, read_manifest
from neocloud.services.compute.public import filesystem_spec
from neocloud.services.compute.reconcile.volumes import PLAIN
from neocloud.services.compute.types import GIB, NAMESPACE_LABEL, ROOT_FILESYSTEM_LABEL
from tests.fast.services.compute.conftest import Bench

ID = "computefilesystem-e00abc"
CLUSTER_NAMESPACE = "slurmcluster-e00xyz"
LABELS = {NAMESPACE_LABEL: CLUSTER_NAMESPACE, ROOT_FILESYSTEM_LABEL: "jail"}


async def test_a_new_filesystem_becomes_a_volume(bench: Bench) -> None:
    await bench.insert(ID, 10)
    await bench.until_state(ID, "READY")
    claim = bench.engine.world.objects[bench.claim(ID)].to_dict()
    assert claim["spec"]["resources"]["requests"]["storage"] == str(10 * GIB)
    status = (await bench.message(ID)).status
    assert status.state == FilesystemStatus.State.Value("READY")
    assert (status.size_bytes, status.block_size_bytes, status.reconciling) == (10 * GIB, 4096, False)


async def test_a_filesystem_grows(bench: Bench) -> None:
    await bench.insert(ID, 10)
    await bench.until_state(ID, "READY")
    await bench.change(ID, spec=filesystem_spec(20).SerializeToString(), resource_version=2)

    async def has_grown() -> bool:
        return (await bench.message(ID)).status.size_bytes == 20 * GIB

    await bench.clock.run_until(has_grown)
    claim = bench.engine.world.objects[bench.claim(ID)].to_dict()
    assert claim["spec"]["resources"]["requests"]["storage"] == str(20 * GIB)


async def test_a_growth_waits_until_the_engine_can_do_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only an unused file system can grow here: it is usable meanwhile, and has its old size."""
    await bench.insert(ID, 10)
    await bench.until_state(ID, "READY")

    async def refuse(objects: Sequence[Manifest]) -> None:
        raise EngineUnavailable("It grows once no pod uses it.")

    with monkeypatch.context() as waiting:
        waiting.setattr(bench.engine, "apply", refuse)
        await bench.change(ID, spec=filesystem_spec(20).SerializeToString(), resource_version=2)
        await bench.until_state(ID, "UPDATING")
        status = (await bench.message(ID)).status
        assert (status.size_bytes, status.reconciling) == (10 * GIB, True)
        assert "once no pod uses it" in status.state_description
    await bench.until_state(ID, "READY")
    assert (await bench.message(ID)).status.size_bytes == 20 * GIB


async def test_a_filesystem_without_a_limit_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    observe = bench.engine.observe

    async def observe_an_earlier_one(namespace: str) -> Observation:
        return replace(await observe(namespace), unsized=frozenset({bench.claim(ID)}))

    monkeypatch.setattr(bench.engine, "observe", observe_an_earlier_one)
    await bench.insert(ID, 10)
    await bench.until_state(ID, "READY")
    assert "not enforced" in (await bench.message(ID)).status.state_description


async def test_an_owned_filesystem_waits_for_its_owners_namespace(bench: Bench) -> None:
    await bench.insert(ID, labels=LABELS, owner_id=CLUSTER_NAMESPACE)

    async def waits() -> bool:
        return "does not exist yet" in (await bench.message(ID)).status.state_description

    await bench.clock.run_until(waits)
    await bench.engine.apply([Namespace(name=CLUSTER_NAMESPACE)])
    await bench.until_state(ID, "READY")
    claim = bench.engine.world.objects[bench.claim(ID, CLUSTER_NAMESPACE)].to_dict()
    assert claim["spec"]["dataSourceRef"]["name"] == "jail"


async def test_deleting_takes_volume_and_namespace_away(bench: Bench) -> None:
    await bench.insert(ID)
    await bench.until_state(ID, "READY")
    await bench.change(ID, deleted_at=bench.clock.now(), state="DELETING")
    await bench.until_state(ID, "GONE")
    assert bench.engine.world.objects == {}
    assert ID not in bench.engine.world.namespaces


async def test_an_engine_that_does_not_answer_is_waited_for(bench: Bench) -> None:
    bench.engine.faults.unavailable = True
    await bench.insert(ID)
    await bench.clock.advance(30)
    row = await bench.row(ID)
    assert row is not None and row.state == "CREATING"
    bench.engine.faults.unavailable = False
    await bench.until_state(ID, "READY")


async def test_what_the_engine_refused_is_tried_again(bench: Bench) -> None:
    """A full disk, say: the filesystem needs no change once there is room."""
    real_apply = bench.engine.apply

    async def refuse(objects) -> bool:
        raise EngineError("The disk is full. Make room.")

    bench.engine.apply = refuse
    await bench.insert(ID)
    await bench.until_state(ID, "ERROR")
    assert (await bench.message(ID)).status.state_description == "The disk is full. Make room."
    bench.engine.apply = real_apply
    await bench.until_state(ID, "READY")


async def test_a_lost_volume_is_an_error_and_is_never_made_again(bench: Bench) -> None:
    """An empty volume in its place would hide that data was lost."""
    await bench.insert(ID)
    await bench.until_state(ID, "READY")
    await bench.engine.remove([bench.claim(ID)])
    await bench.until_state(ID, "ERROR")
    assert "is gone from the engine" in (await bench.message(ID)).status.state_description
    await bench.clock.advance(300)
    assert bench.claim(ID) not in bench.engine.world.objects


async def test_a_lost_filesystem_can_be_deleted(bench: Bench) -> None:
    await bench.insert(ID)
    await bench.until_state(ID, "READY")
    await bench.engine.remove([Reference("Namespace", ID, ID)])
    await bench.change(ID, deleted_at=bench.clock.now(), state="DELETING")
    await bench.until_state(ID, "GONE")


async def test_a_volume_in_use_stays_and_the_status_says_so(bench: Bench) -> None:
    await bench.insert(ID)
    await bench.until_state(ID, "READY")
    await bench.engine.apply([_pod_with(ID)])
    await bench.change(ID, deleted_at=bench.clock.now(), state="DELETING")

    async def says_why() -> bool:
        return (await bench.message(ID)).status.state_description not in ("", PLAIN)

    await bench.clock.run_until(says_why)
    assert bench.claim(ID) in bench.engine.world.objects
    await bench.engine.remove([Reference("Pod", ID, "reader-0")])
    await bench.until_state(ID, "GONE")


def _pod_with(claim: str) -> Manifest:
    container = {
        "name": "reader",
        "image": "localhost/any",
        "command": ["sleep", "infinity"],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    return read_manifest(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "reader-0", "namespace": claim},
            "spec": {
                "hostname": "reader-0",
                "containers": [container],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
            },
        }
    )
