"""What every engine must do, as tests.

Subclass `EngineConformance`, give it a `bench` fixture, and pytest runs the whole suite against that engine.
The programs used are those of busybox; the suite asks nothing that `engines.base` does not promise.
"""

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any, Protocol

import pytest
import pytest_asyncio

from neocloud.engines.base import (
    Engine,
    EngineError,
    EngineEvent,
    EventKind,
    ExecResult,
    KubernetesObject,
    PodPhase,
    Reference,
)
from neocloud.testing.engine_space import PATIENCE_SECONDS, Space, eventually, mounted, on_network

SERVE = ["httpd", "-f", "-p", "8080"]
OPEN_RULES = [
    {"direction": direction, "access": "allow", "protocol": "any"} for direction in ("ingress", "egress")
]


class Bench(Protocol):
    """The engine under test and what only its own test knows."""

    engine: Engine
    image: str
    """An image with busybox."""
    root_filesystem: str
    """The name of a root file system with busybox."""

    def reopened(self) -> Engine:
        """A new engine object on the same state, as after a restart of the server."""
        ...


@pytest.mark.asyncio(loop_scope="module")
class EngineConformance:
    """The suite. `bench` is a module-scoped fixture of the subclass's module."""

    @pytest_asyncio.fixture(loop_scope="module")
    async def space(self, bench: Bench) -> AsyncIterator[Space]:
        space = Space(bench.engine, bench.image)
        await space.apply(space.namespace())
        yield space
        await bench.engine.remove([Reference("Namespace", space.name, space.name)])

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

    async def test_exec_gives_output_error_output_and_exit_code(self, space: Space) -> None:
        await space.apply(space.pod("one"))
        result = await space.run("one", "sh", "-c", "echo out; echo err >&2; exit 3")
        assert result == ExecResult(3, b"out\n", b"err\n")
        assert (await space.run("one", "no-such-program")).exit_code == 127

    async def test_exec_passes_all_of_stdin(self, space: Space) -> None:
        await space.apply(space.pod("one"))
        data = bytes(range(256)) * 4096
        assert (await space.run("one", "cat", stdin=data)).stdout == data

    async def test_exec_ends_a_command_that_takes_too_long(self, space: Space) -> None:
        await space.apply(space.pod("one"))
        with pytest.raises(EngineError, match="did not finish"):
            await space.run("one", "sleep", "3000", timeout_seconds=0.5)

    async def test_exec_says_what_is_missing(self, space: Space) -> None:
        with pytest.raises(EngineError, match="does not exist"):
            await space.run("nobody", "true")
        await space.apply(space.pod("one"))
        with pytest.raises(EngineError, match="no container"):
            await space.run("one", "true", container="other")

    async def test_logs_are_lines_oldest_first(self, space: Space) -> None:
        script = "echo one; echo two; echo three; exec sleep 3600"
        await space.apply(space.pod("one", ["sh", "-c", script]))
        await eventually(lambda: space.lines("one"), lambda lines: lines == ["one", "two", "three"])
        assert await space.lines("one", tail=2) == ["two", "three"]

    async def test_followed_logs_end_with_the_container(self, space: Space) -> None:
        script = "echo one; exec sleep 3600"
        await space.apply(space.pod("one", ["sh", "-c", script], restartPolicy="Never"))
        following = asyncio.create_task(space.lines("one", follow=True))
        await space.kill("one")
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await following == ["one"]

    async def test_restart_starts_the_same_pod_anew(self, space: Space) -> None:
        await space.apply(space.pod("one", ["sh", "-c", "echo started; exec sleep 3600"]))
        before = await space.until("one", lambda pod: pod.ready)
        await space.engine.restart(space.reference("Pod", "one"))
        await eventually(lambda: space.lines("one"), lambda lines: lines == ["started"] * 2)
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

    async def test_changed_config_shows_in_the_running_pod(self, space: Space) -> None:
        def config(value: str) -> KubernetesObject:
            return space.manifest("ConfigMap", "settings", data={"key": value})

        pod = space.pod("one", **mounted({"configMap": {"name": "settings"}}, "/settings"))
        await space.apply(config("old"), pod)
        before = await space.seen("one")
        assert await space.read("one", "/settings/key") == b"old"
        await space.apply(config("new"))
        assert await space.read("one", "/settings/key") == b"new"
        assert await space.seen("one") == before

    async def test_secret_arrives_decoded(self, space: Space) -> None:
        raw = bytes(range(256))
        data = {"token": base64.b64encode(raw).decode()}
        pod = space.pod("one", **mounted({"secret": {"secretName": "login"}}, "/login", readOnly=True))
        await space.apply(space.manifest("Secret", "login", data=data), pod)
        assert await space.read("one", "/login/token") == raw

    async def test_pod_without_its_secret_is_refused(self, space: Space) -> None:
        pod = space.pod("one", **mounted({"secret": {"secretName": "absent"}}, "/login"))
        with pytest.raises(EngineError, match="absent"):
            await space.apply(pod)

    async def test_volume_outlives_its_pod_but_not_its_removal(self, space: Space) -> None:
        volume = {"persistentVolumeClaim": {"claimName": "data"}}
        await space.apply(space.claim("data"), space.pod("one", **mounted(volume, "/data")))
        await space.run("one", "tee", "/data/file", stdin=b"kept")
        with pytest.raises(EngineError, match="in use"):
            await space.remove("PersistentVolumeClaim", "data")
        await space.remove("Pod", "one")
        await space.apply(space.claim("data"), space.pod("two", **mounted(volume, "/data")))
        assert await space.read("two", "/data/file") == b"kept"
        await space.remove("Pod", "two")
        await space.remove("PersistentVolumeClaim", "data")
        await space.apply(space.claim("data"), space.pod("two", **mounted(volume, "/data")))
        assert await space.read("two", "/data/file") == b""

    async def test_volume_of_another_namespace_is_mounted_where_the_pod_says_so(
        self, space: Space, bench: Bench
    ) -> None:
        """Disks move between machines, and filesystems are shared."""
        other = Space(bench.engine, bench.image)
        await other.apply(other.namespace(), other.claim("data"))
        pod = space.pod("one", **mounted({"persistentVolumeClaim": {"claimName": "data"}}, "/data"))
        try:
            with pytest.raises(EngineError, match="does not exist"):
                await space.apply(pod)
            pod["metadata"]["annotations"] = {"neocloud.dev/claims": f'{{"data": "{other.name}"}}'}
            await space.apply(pod)
            await space.run("one", "tee", "/data/file", stdin=b"shared")
            for what in (other.reference("PersistentVolumeClaim", "data"), other.whole):
                with pytest.raises(EngineError, match="in use"):
                    await bench.engine.remove([what])
            await space.remove("Pod", "one")
            await other.apply(
                other.pod("two", **mounted({"persistentVolumeClaim": {"claimName": "data"}}, "/data"))
            )
            assert await other.read("two", "/data/file") == b"shared"
        finally:
            await space.engine.remove([space.reference("Pod", "one"), other.whole])

    async def test_copied_volume_is_independent_of_its_source(self, space: Space, bench: Bench) -> None:
        other = Space(bench.engine, bench.image)
        await other.apply(other.namespace())
        volume = mounted({"persistentVolumeClaim": {"claimName": "data"}}, "/data")
        copied = other.claim("data")
        copied["spec"]["dataSourceRef"] = {
            "kind": "PersistentVolumeClaim",
            "name": "data",
            "namespace": space.name,
        }
        try:
            with pytest.raises(EngineError, match="does not exist"):
                await other.apply(copied)
            await space.apply(space.claim("data"), space.pod("one", **volume))
            await space.run("one", "tee", "/data/file", stdin=b"first")
            await other.apply(copied, other.pod("two", **volume))
            assert await other.read("two", "/data/file") == b"first"
            await other.run("two", "tee", "/data/file", stdin=b"second")
            await other.apply(copied)
            assert await other.read("two", "/data/file") == b"second"
            assert await space.read("one", "/data/file") == b"first"
            with pytest.raises(EngineError, match="another dataSourceRef"):
                await other.apply(other.claim("data"))
        finally:
            await other.remove("Namespace", other.name)

    async def test_capabilities_say_how_machines_would_run(self, bench: Bench) -> None:
        details = (await bench.engine.capabilities()).details
        assert details["acceleration"] in ("kvm", "tcg") and details["acceleration reason"]

    async def test_pods_of_a_namespace_find_and_reach_each_other(self, space: Space) -> None:
        front = space.manifest("Service", "front", spec={"selector": {"role": "front"}})
        server = space.pod("server-0", SERVE, labels={"role": "front"}, hostname="server")
        await space.apply(front, server, space.pod("client"))
        for name in ("server", "front"):
            await eventually(lambda name=name: space.reaches("client", name), bool)

    async def test_namespaces_do_not_reach_each_other(self, space: Space, bench: Bench) -> None:
        if not (await bench.engine.capabilities()).isolates_namespaces:
            return
        other = Space(bench.engine, bench.image)
        await other.apply(other.namespace())
        try:
            await space.apply(space.pod("server", SERVE), space.pod("neighbour"))
            await other.apply(other.pod("stranger"))
            server = await space.until("server", lambda pod: pod.ready)
            assert server.ip
            await eventually(lambda: space.reaches("neighbour", server.ip or ""), bool)
            assert not await other.reaches("stranger", server.ip)
            assert not await other.reaches("stranger", "server")
        finally:
            await other.remove("Namespace", other.name)

    async def test_members_of_a_network_find_and_reach_each_other(self, space: Space, bench: Bench) -> None:
        other = Space(bench.engine, bench.image)
        await other.apply(other.namespace())
        try:
            await space.apply(space.network("lab", 1, *OPEN_RULES))
            server = on_network(other.pod("server", SERVE), space.name, "10.210.1.9")
            client = on_network(space.pod("client"), space.name, "10.210.1.8")
            await other.apply(server)
            await space.apply(client, space.pod("stranger"))
            found = await other.until("server", lambda pod: pod.ready)
            assert found.ip == "10.210.1.9"
            for name in ("server", "server.lab.internal", "10.210.1.9"):
                await eventually(lambda name=name: space.reaches("client", name), bool)
            assert not await space.reaches("stranger", "10.210.1.9")
            assert b"server" not in await space.read("stranger", "/etc/hosts")
            with pytest.raises(EngineError, match="in use by pod"):
                await space.remove("VirtualNetwork", "lab")
        finally:
            await other.remove("Namespace", other.name)
        await space.remove("Pod", "client")
        await space.remove("VirtualNetwork", "lab")
        seen = await space.engine.observe(space.name)
        assert "VirtualNetwork" not in {reference.kind for reference in seen.others}

    async def test_rules_of_a_network_change_under_running_pods(self, space: Space) -> None:
        server = on_network(space.pod("server", SERVE), space.name, "10.210.2.9")
        client = on_network(space.pod("client"), space.name, "10.210.2.8")
        await space.apply(space.network("lab", 2), server, client)
        before = await space.until("server", lambda pod: pod.ready)
        assert not await space.reaches("client", "10.210.2.9")
        await space.apply(space.network("lab", 2, *OPEN_RULES))
        await eventually(lambda: space.reaches("client", "10.210.2.9"), bool)
        await space.apply(on_network(space.pod("server", SERVE), space.name, "10.210.2.9", securityGroups=[]))
        assert not await space.reaches("client", "10.210.2.9")
        assert await space.seen("server") == before

    async def test_changed_address_replaces_the_pod(self, space: Space) -> None:
        await space.apply(space.network("lab", 3), on_network(space.pod("one"), space.name, "10.210.3.9"))
        await space.run("one", "tee", "/tmp/mark", stdin=b"here")
        await space.apply(on_network(space.pod("one"), space.name, "10.210.3.10"))
        after = await space.until("one", lambda pod: pod.ready)
        assert after.ip == "10.210.3.10" and await space.read("one", "/tmp/mark") == b""

    async def test_pod_that_does_not_fit_its_network_is_refused(self, space: Space) -> None:
        await space.apply(space.network("lab", 4), on_network(space.pod("one"), space.name, "10.210.4.9"))
        for address, changes, message in [
            ("10.210.5.8", {}, "not in subnet"),
            ("10.210.4.9", {"mac": "52:54:00:00:01:00"}, "held by pod one"),
            ("10.210.4.7", {"network": "never-applied"}, "apply it before"),
            ("10.210.4.7", {"subnet": "other"}, "no subnet other"),
        ]:
            fields = {"network": space.name, **changes}
            with pytest.raises(EngineError, match=message):
                await space.apply(on_network(space.pod("two"), address=address, **fields))
            assert await space.seen("two") is None

    async def test_pod_is_ready_once_its_probe_answers(self, space: Space) -> None:
        probe = {"exec": {"command": ["cat", "/tmp/go"]}, "periodSeconds": 1}
        await space.apply(space.pod("one", container={"readinessProbe": probe}))
        pod = await space.until("one", lambda pod: pod.phase is PodPhase.RUNNING)
        assert not pod.ready
        await space.run("one", "touch", "/tmp/go")
        await space.until("one", lambda pod: pod.ready)

    async def test_port_probe_follows_the_server(self, space: Space) -> None:
        probe = {"tcpSocket": {"port": 8080}}
        await space.apply(
            space.pod("up", SERVE, container={"readinessProbe": probe}),
            space.pod("down", container={"readinessProbe": probe}),
        )
        await space.until("up", lambda pod: pod.ready)
        down = await space.seen("down")
        assert down and not down.ready

    async def test_new_engine_adopts_what_runs(self, space: Space, bench: Bench) -> None:
        probe = {"readinessProbe": {"tcpSocket": {"port": 8080}}}
        pod = space.pod("one", SERVE, container=probe, labels={"role": "worker"})
        await space.apply(pod)
        await space.run("one", "tee", "/tmp/mark", stdin=b"here")
        before = await space.until("one", lambda pod: pod.ready)
        space.engine = bench.reopened()
        try:
            assert await space.seen("one") == before
            await space.apply(space.namespace(), pod)
            assert await space.read("one", "/tmp/mark") == b"here"
            await space.remove("Pod", "one")
            assert await space.seen("one") is None
        finally:
            await space.engine.close()

    async def test_killed_pod_tells_and_comes_back(self, space: Space) -> None:
        await space.apply(space.pod("one"))
        died = asyncio.create_task(_next(space.engine.events(), EventKind.POD_DIED))
        await space.kill("one")
        event = await died
        assert event.pod == space.reference("Pod", "one")
        assert event.exit_code not in (0, None)
        pod = await space.until("one", lambda pod: pod.ready and pod.restart_count > 0)
        assert pod.restart_count == 1

    async def test_pod_that_never_restarts_stays_ended(self, space: Space) -> None:
        manifests = [
            space.pod("good", ["true"], restartPolicy="Never"),
            space.pod("bad", ["sh", "-c", "exit 3"], restartPolicy="Never"),
        ]
        for _ in range(2):
            await space.apply(*manifests)
            await space.until("good", lambda pod: pod.phase is PodPhase.SUCCEEDED)
            bad = await space.until("bad", lambda pod: pod.phase is PodPhase.FAILED)
            assert "3" in bad.message and not bad.ready

    async def test_events_tell_of_start_and_removal(self, space: Space) -> None:
        events = space.engine.events()
        await space.apply(space.pod("one"))
        assert (await _next(events, EventKind.POD_STARTED)).pod.name == "one"
        await space.remove("Pod", "one")
        assert (await _next(events, EventKind.POD_REMOVED)).pod.name == "one"

    async def test_containers_of_a_pod_share_scratch_space(self, space: Space) -> None:
        pod = space.pod("pair", **mounted({"emptyDir": {"medium": "Memory"}}, "/scratch"))
        first = pod["spec"]["containers"][0]
        pod["spec"]["containers"].append({**first, "name": "second"})
        await space.apply(pod)
        await space.run("pair", "tee", "/scratch/file", stdin=b"shared")
        result = await space.run("pair", "cat", "/scratch/file", container="second")
        assert result.stdout == b"shared"

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


async def _next(events: AsyncIterator[EngineEvent], kind: EventKind) -> EngineEvent:
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for event in events:
            if event.kind is kind:
                return event
    raise AssertionError("the stream of events ended")
