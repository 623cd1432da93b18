"""The knobs of the fake engine do what they say."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from neocloud.engines.base import EngineError, EngineUnavailable, EventKind, ExecResult, PodPhase, Reference
from neocloud.engines.fake import FakeEngine, FakeWorld, Faults
from neocloud.engines.manifest import Manifest, Namespace, read_manifest
from neocloud.testing.waiting import FakeClock

SIZE = {"resources": {"requests": {"storage": "1Gi"}}}
NAMESPACE = Namespace(name="space")
ONE = Reference("Pod", "space", "one")


def pod(name: str = "one", **spec: Any) -> Manifest:
    containers = [{"name": "main", "image": "busybox", "command": ["sleep", "9"]}]
    metadata = {"name": name, "namespace": "space"}
    return read_manifest({"kind": "Pod", "metadata": metadata, "spec": {"containers": containers, **spec}})


async def phase(engine: FakeEngine) -> PodPhase:
    found = (await engine.observe("space")).pod("one")
    assert found
    return found.phase


async def test_apply_fails_as_often_as_told_and_then_works() -> None:
    engine = FakeEngine(faults=Faults(fail_applies=2))
    for _ in range(2):
        with pytest.raises(EngineError):
            await engine.apply([NAMESPACE, pod()])
    await engine.apply([NAMESPACE, pod()])
    assert await phase(engine) is PodPhase.RUNNING


async def test_unavailable_engine_refuses_every_verb() -> None:
    engine = FakeEngine(faults=Faults(unavailable=True))
    for call in (engine.capabilities(), engine.observe("space"), engine.apply([]), engine.remove([ONE])):
        with pytest.raises(EngineUnavailable):
            await call


async def test_pods_wait_behind_the_start_gate() -> None:
    gate = asyncio.Event()
    engine = FakeEngine(faults=Faults(start_gate=gate))
    applying = asyncio.create_task(engine.apply([NAMESPACE, pod()]))
    while not engine.world.pods:
        await asyncio.sleep(0)
    assert await phase(engine) is PodPhase.PENDING
    gate.set()
    await applying
    assert await phase(engine) is PodPhase.RUNNING


async def test_pod_dies_when_its_time_has_come() -> None:
    clock = FakeClock()
    engine = FakeEngine(faults=Faults(die_after_seconds={"one": 30}), clock=clock)
    events = engine.events()
    await engine.apply([NAMESPACE, pod(restartPolicy="Never")])
    await clock.advance(29)
    assert await phase(engine) is PodPhase.RUNNING
    await clock.advance(2)
    assert await phase(engine) is PodPhase.FAILED
    kinds = [(await anext(events)).kind for _ in range(2)]
    assert kinds == [EventKind.POD_STARTED, EventKind.POD_DIED]


async def test_lost_pod_is_gone_without_a_word_and_comes_back_at_its_address() -> None:
    engine = FakeEngine()
    await engine.apply([NAMESPACE, pod(), pod("two")])
    before = (await engine.observe("space")).pod("one")
    events = engine.events()
    engine.lose(ONE)
    assert (await engine.observe("space")).pod("one") is None
    await engine.apply([pod()])
    assert (await anext(events)).kind is EventKind.POD_STARTED
    after = (await engine.observe("space")).pod("one")
    assert before and after and after.ip == before.ip


async def test_unknown_image_fails_the_apply() -> None:
    engine = FakeEngine(faults=Faults(unknown_images={"busybox"}))
    with pytest.raises(EngineError, match="busybox"):
        await engine.apply([NAMESPACE, pod()])


async def test_responder_answers_before_the_built_in_programs() -> None:
    def responder(pod: Reference, container: str, command: Any, stdin: bytes) -> ExecResult | None:
        return ExecResult(0, b"idle", b"") if command[0] == "sinfo" else None

    engine = FakeEngine(responder=responder)
    await engine.apply([NAMESPACE, pod()])
    assert (await engine.exec(ONE, ["sinfo"])).stdout == b"idle"
    assert (await engine.exec(ONE, ["echo", "x"])).stdout == b"x\n"


async def test_world_in_a_file_outlives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "world"
    await FakeEngine(FakeWorld.open(path)).apply([NAMESPACE, pod()])
    engine = FakeEngine(FakeWorld.open(path))
    assert await phase(engine) is PodPhase.RUNNING


async def test_machine_image_fills_a_new_volume_unless_unknown() -> None:
    engine = FakeEngine(faults=Faults(unknown_images={"absent"}))

    def claim(name: str) -> Manifest:
        source = {"kind": "MachineImage", "name": name}
        metadata = {"name": name, "namespace": "space"}
        spec = {**SIZE, "dataSourceRef": source}
        return read_manifest({"kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})

    await engine.apply([NAMESPACE, claim("debian")])
    reference = Reference("PersistentVolumeClaim", "space", "debian")
    assert engine.world.volumes[reference] == {"disk.qcow2": b"disk of image debian"}
    with pytest.raises(EngineError, match="build or import"):
        await engine.apply([claim("absent")])
