# pyright: standard
"""Conformance of pods: applied, replaced, adopted, removed, refused."""

from typing import Any

import pytest

from neocloud.engines.base import (
    EngineError,
    PodPhase,
)
from neocloud.testing.engine_space import Bench, Space
from neocloud.testing.waiting import until


@pytest.mark.asyncio(loop_scope="module")
class PodConformance:
    async def test_applied_pod_runs_with_address_and_labels(self, space: Space) -> None:
        await space.apply(space.pod("one", labels={"role": "worker"}))
        pod = await space.until("one", lambda pod: pod.phase is PodPhase.RUNNING)
        assert pod.ready and pod.ip and pod.started_at
        assert pod.labels == {"role": "worker"}
        assert pod.restart_count == 0

    async def test_applying_again_touches_nothing(self, space: Space) -> None:
        await space.apply(space.pod("one"))
        await space.run("one", "tee", "/tmp/mark", stdin=b"here")
        before = await space.seen("one")
        await space.apply(space.namespace(), space.pod("one"))
        assert await space.seen("one") == before
        assert await space.read("one", "/tmp/mark") == b"here"

    async def test_apply_says_whether_a_pod_may_have_changed(self, space: Space) -> None:
        pods = space.pod("one"), space.pod("two")
        assert await space.apply(*pods)
        before = (
            await space.until("one", lambda pod: pod.ready),
            await space.until("two", lambda pod: pod.ready),
        )
        assert not await space.apply(space.namespace(), *pods)
        assert (await space.seen("one"), await space.seen("two")) == before
        await space.remove("Pod", "two")
        assert await space.apply(*pods)

    async def test_changed_pod_is_replaced_and_keeps_its_address(self, space: Space) -> None:
        await space.apply(space.pod("one"), space.pod("two"))
        before = await space.seen("one")
        await space.run("one", "tee", "/tmp/mark", stdin=b"here")
        await space.apply(space.pod("one", ["sleep", "3601"]))
        after = await space.until("one", lambda pod: pod.ready)
        assert before and after.ip == before.ip
        assert await space.read("one", "/tmp/mark") == b""

    async def test_pod_runs_from_a_root_file_system_and_leaves_it_as_it_was(
        self, space: Space, bench: Bench
    ) -> None:
        root: dict[str, Any] = {"container": {"image": bench.root_filesystem}}
        await space.apply(space.pod("one", **root), space.pod("two", **root))
        await space.run("one", "tee", "/tmp/mark", stdin=b"here")
        assert await space.read("one", "/tmp/mark") == b"here"
        assert await space.read("two", "/tmp/mark") == b""
        await space.kill("one")
        await space.until("one", lambda pod: pod.ready and pod.restart_count == 1)
        await space.apply(space.pod("one", ["sleep", "3601"], **root))
        assert await space.read("one", "/tmp/mark") == b""

    async def test_changed_labels_do_not_replace_the_pod(self, space: Space) -> None:
        await space.apply(space.pod("one", labels={"generation": "1"}))
        await space.run("one", "tee", "/tmp/mark", stdin=b"here")
        await space.apply(space.pod("one", labels={"generation": "2"}))
        pod = await space.until("one", lambda pod: pod.labels == {"generation": "2"})
        assert pod.ready and await space.read("one", "/tmp/mark") == b"here"

    async def test_unknown_namespace_is_an_empty_observation(self, bench: Bench) -> None:
        seen = await bench.engine.observe("never-applied")
        assert not seen.pods and not seen.others

    async def test_observation_names_every_object(self, space: Space) -> None:
        config = space.manifest("ConfigMap", "settings", data={"key": "value"})
        secret = space.manifest("Secret", "password", stringData={"key": "value"})
        service = space.manifest("Service", "front", spec={"selector": {"role": "front"}})
        await space.apply(service, secret, config, space.claim("files"))
        others = (await space.engine.observe(space.name)).others
        kinds = {"ConfigMap", "Secret", "Service", "PersistentVolumeClaim", "Namespace"}
        assert {reference.kind for reference in others} == kinds

    async def test_restart_starts_the_same_pod_again(self, space: Space) -> None:
        await space.apply(space.pod("one", ["sh", "-c", "echo started; exec sleep 3600"]))
        before = await space.until("one", lambda pod: pod.ready)
        await space.engine.restart(space.reference("Pod", "one"))
        await until(lambda: space.lines("one"), holds=lambda lines: lines == ["started"] * 2)
        after = await space.until("one", lambda pod: pod.ready)
        assert after.ip == before.ip

    async def test_removed_pod_is_gone_and_can_be_removed_again(self, space: Space) -> None:
        await space.apply(space.pod("one"), space.pod("two"))
        for _ in range(2):
            await space.remove("Pod", "one")
            assert await space.seen("one") is None
        assert await space.seen("two") is not None

    async def test_removed_namespace_takes_everything_with_it(self, space: Space) -> None:
        config = space.manifest("ConfigMap", "settings", data={"key": "value"})
        await space.apply(config, space.claim("files"), space.pod("one"))
        for _ in range(2):
            await space.remove("Namespace", space.name)
            seen = await space.engine.observe(space.name)
            assert not seen.pods and not seen.others

    async def test_capabilities_say_how_machines_would_run(self, bench: Bench) -> None:
        details = (await bench.engine.capabilities()).details
        assert details["acceleration"] in ("kvm", "tcg") and details["acceleration reason"]

    @pytest.mark.parametrize(
        "change",
        [
            {"kind": "Potato"},
            {"metadata": {"name": "UPPER", "namespace": "conformance-1"}},
            {"metadata": {"name": "../up", "namespace": "conformance-1"}},
            {"metadata": {"name": "one", "namespace": "no/slash"}},
            {"metadata": {"name": "one", "namespace": "never-applied"}},
            {"spec": None},
            {"spec": {"containers": []}},
            {"spec": {"containers": [{"name": "main"}]}},
            {"spec": {"containers": [{"name": "main", "image": "x", "command": "ls"}]}},
            {"spec": {"containers": [{"name": "main", "image": "x", "potato": 1}]}},
            {"spec": {"containers": [{"name": "a", "image": "x"}, {"name": "a", "image": "x"}]}},
            {"spec": {"hostNetwork": True, "containers": [{"name": "main", "image": "x"}]}},
        ],
        ids=str,
    )
    async def test_absurd_object_is_refused_whole(self, space: Space, change: dict[str, Any]) -> None:
        with pytest.raises(EngineError):
            await space.apply(space.pod("fine"), {**space.pod("one"), **change})
        assert not (await space.engine.observe(space.name)).pod("one")
