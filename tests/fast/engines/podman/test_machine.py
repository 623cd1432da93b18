"""Effects of the Podman engine on the machine: limits, ports, rules, mounts, and faults from outside."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from neocloud.engines.base import EngineError, EventKind, PodPhase, Reference
from neocloud.engines.podman import PodmanEngine
from neocloud.engines.podman.storage.mounts import mount_tmpfs, mounts_below, unmount
from neocloud.testing.engine_conformance import SERVE
from neocloud.testing.engine_space import Space, mounted
from neocloud.testing.waiting import until
from tests.fast.engines.podman.conftest import PodmanBench, traces_of
from tests.fast.engines.podman.wire import Station, outside

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def space(bench: PodmanBench) -> AsyncIterator[Space]:
    space = Space(bench.engine, bench.image)
    await space.apply(space.namespace())
    yield space
    await bench.engine.remove([Reference("Namespace", space.name, space.name)])


async def test_limits_are_those_of_the_pod(space: Space) -> None:
    limits = {"resources": {"limits": {"cpu": "500m", "memory": "64Mi"}}}
    await space.apply(space.pod("one", container=limits))
    groups = "/sys/fs/cgroup"
    memory = f"cat {groups}/memory/memory.limit_in_bytes || cat {groups}/memory.max"
    cpu = f"cat {groups}/cpu/cpu.cfs_quota_us || cat {groups}/cpu.max"
    assert int((await space.run("one", "sh", "-c", memory)).stdout) == 64 * 2**20
    assert (await space.run("one", "sh", "-c", cpu)).stdout.split()[0] == b"50000"


async def test_an_operator_removes_a_namespace_without_the_engine(bench: PodmanBench) -> None:
    """The commands are those that `neo ... delete --force` prints."""
    space = Space(bench.engine, bench.image)
    several = space.pod("several")
    main = several["spec"]["containers"][0]
    several["spec"]["containers"].append({**main, "name": "second"})  # they depend on a container they share
    await space.apply(space.namespace(), space.pod("one"), several)
    show, *removal = bench.engine.removal_commands(space.name)

    async def shown() -> str:
        command = [*show.split(), "--format", "{{.Labels}}"]
        return (
            await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
        ).stdout

    before = await shown()
    assert "neocloud.pod:one" in before and before.count("neocloud.pod:several") == 3
    for command in removal:
        await asyncio.to_thread(subprocess.run, ["sh", "-c", command], capture_output=True, check=True)
    assert not await shown()
    await bench.engine.remove([Reference("Namespace", space.name, space.name)])


async def test_published_port_answers_on_loopback_only(space: Space) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    ports = {"ports": [{"containerPort": 8080, "hostPort": port}]}
    await space.apply(space.pod("web", SERVE, container=ports))
    await until(lambda: _connects("127.0.0.1", port))
    assert not await _connects(_address_of_this_machine(), port)


async def test_port_published_on_an_address_is_open_to_other_machines_and_to_no_pod(
    space: Space, bench: PodmanBench
) -> None:
    """VPC-03: the login node of a cloud that listens for other machines."""
    neighbour = Space(bench.engine, bench.image)
    with outside() as world, socket.socket() as reserved, socket.socket() as also_reserved:
        here = world.host
        reserved.bind((here, 0))
        also_reserved.bind((here, 0))
        opened, near = (each.getsockname()[1] for each in (reserved, also_reserved))
        reserved.close()
        addresses = ("127.0.0.1", here)
        ports = [{"containerPort": 8080, "hostIP": each, "hostPort": opened} for each in addresses]
        also_reserved.close()
        on_loopback = {"ports": [{"containerPort": 8080, "hostPort": near}]}
        try:
            await neighbour.apply(neighbour.namespace(), neighbour.pod("outsider"))
            await space.apply(
                space.pod("web", SERVE, container={"ports": ports}),
                space.pod("near", SERVE, container=on_loopback),
            )
            for port in (opened, near):
                await until(lambda port=port: _connects("127.0.0.1", port))
            assert await _opens(world, here, opened)
            assert not await _opens(world, here, near)
            web = await space.until("web", lambda pod: pod.ready)
            await neighbour.until("outsider", lambda pod: pod.ready)
            request, knock = b"GET / HTTP/1.0\r\n\r\n", ("nc", "-w", "3")
            own = await space.run("near", "nc", "-w", "30", web.ip or "", "8080", stdin=request)
            assert own.exit_code == 0, own
            for address in (here, web.ip or ""):
                port = str(opened if address == here else 8080)
                knocked = await neighbour.run("outsider", *knock, address, port, stdin=request)
                assert knocked.exit_code != 0, address
        finally:
            await bench.engine.remove([neighbour.whole])


async def test_taken_port_is_named_and_the_other_pod_starts(space: Space) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = {"ports": [{"containerPort": 8080, "hostPort": port}]}
        with pytest.raises(EngineError, match=f"{port}.*already in use.*another"):
            await space.apply(space.pod("web", container=ports), space.pod("other"))
    assert (await space.until("other", lambda pod: pod.ready)).ip
    await space.apply(space.pod("web", container=ports))
    await space.until("web", lambda pod: pod.ready)


async def test_port_of_a_pod_that_was_killed_with_all_that_watched_it_leads_to_the_next_one(
    bench: PodmanBench,
) -> None:
    """Nobody takes the dead pod's forward away; new connections must not end in it."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    ports = {"ports": [{"containerPort": 8080, "hostPort": port}]}
    spaces = [Space(bench.engine, bench.image) for _ in range(2)]
    try:
        for space in spaces:
            await space.apply(space.namespace(), space.pod("web", SERVE, container=ports))
            await until(lambda: _connects("127.0.0.1", port))
            if space is spaces[0]:
                _kill_with_its_monitor(f"{space.name}.web.main")
                assert not await _connects("127.0.0.1", port)
    finally:
        for space in spaces:
            await bench.engine.remove([Reference("Namespace", space.name, space.name)])


async def test_pod_whose_monitor_was_killed_can_be_replaced_and_removed(space: Space) -> None:
    """Podman waits without success for the monitor's word that the container has ended."""
    for command in (["sh", "-c", "echo changed; exec sleep 3600"], None):
        await space.apply(space.pod("one"))
        await space.until("one", lambda pod: pod.ready)
        _monitor_of(f"{space.name}.one.main").kill()
        if command:
            await space.apply(space.pod("one", command))
            await until(lambda: space.lines("one"), holds=lambda lines: lines == ["changed"])
        await space.remove("Pod", "one")


async def test_pod_killed_with_its_monitor_is_seen_to_be_gone_and_made_again(space: Space) -> None:
    await space.apply(space.pod("one"))
    before = await space.until("one", lambda pod: pod.ready)
    _kill_with_its_monitor(f"{space.name}.one.main")
    await space.until("one", lambda pod: pod.phase is PodPhase.PENDING)
    await space.apply(space.pod("one"))
    after = await space.until("one", lambda pod: pod.ready)
    assert after.ip == before.ip and after.started_at != before.started_at


async def test_pods_do_not_reach_services_of_this_machine(space: Space) -> None:
    await space.apply(space.pod("one"))
    pod = await space.until("one", lambda pod: pod.ready)
    gateway = (pod.ip or "").rsplit(".", 1)[0] + ".1"
    with socket.create_server(("0.0.0.0", 0)) as service:
        port = str(service.getsockname()[1])
        for address in (gateway, _address_of_this_machine()):
            result = await space.run("one", "nc", "-w", "1", address, port, stdin=b"x")
            assert result.exit_code != 0, address


async def test_environment_comes_from_secrets_and_the_pod_itself(space: Space) -> None:
    env = [
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "login", "key": "token"}}},
        {"name": "BOTH", "value": "$(NAME)/$(TOKEN)"},
    ]
    await space.apply(
        space.manifest("Secret", "login", stringData={"token": "t0"}),
        space.pod("one", container={"env": env}),
    )
    assert b"BOTH=one/t0\n" in (await space.run("one", "env")).stdout


async def test_mounted_secret_has_its_mode_and_never_touches_the_disk(
    space: Space, bench: PodmanBench
) -> None:
    secret = space.manifest("Secret", "login", stringData={"token": "never-on-disk-0451"})
    volume = {"secret": {"secretName": "login", "defaultMode": 0o400}}
    await space.apply(secret, space.pod("one", **mounted(volume, "/login")))
    assert (await space.run("one", "stat", "-c", "%a %u", "/login/token")).stdout == b"400 0\n"
    found = _files_with("never-on-disk-0451", bench)
    assert [path for path in found if "/engine/secrets/" not in path] == []
    assert bench.home / "engine" / "secrets" in mounts_below(bench.home)


async def test_root_file_system_volume_is_shared_and_leaves_its_source_alone(
    space: Space, bench: PodmanBench
) -> None:
    source = _root_file_system(bench.home, "first")
    claim = space.claim("root")
    claim["spec"]["dataSourceRef"] = {"kind": "RootFilesystem", "name": "jail"}
    volume = {"persistentVolumeClaim": {"claimName": "root"}}
    propagated = mounted(volume, "/jail", mountPropagation="HostToContainer")
    await space.apply(claim, space.pod("one", **propagated), space.pod("two", **propagated))
    assert await space.read("two", "/jail/release") == b"first"
    await space.run("one", "tee", "/jail/release", stdin=b"changed")
    assert await space.read("two", "/jail/release") == b"changed"
    assert (source / "release").read_text() == "first"
    _root_file_system(bench.home, "second")
    await space.remove("Pod", "one")
    await space.remove("Pod", "two")
    for point in mounts_below(bench.home / "volumes"):
        unmount(point)
    await space.apply(claim, space.pod("two", **propagated))
    assert await space.read("two", "/jail/kind") == b"first"
    await space.remove("Namespace", space.name)
    assert mounts_below(bench.home / "volumes") == []


async def test_memory_volume_has_its_size(space: Space) -> None:
    volume = {"emptyDir": {"medium": "Memory", "sizeLimit": "128Mi"}}
    await space.apply(space.pod("one", **mounted(volume, "/dev/shm")))
    sizes = (await space.run("one", "df", "-k", "/dev/shm")).stdout.split()
    assert b"131072" in sizes


async def test_security_context_is_obeyed(space: Space) -> None:
    context = {"runAsUser": 1000, "readOnlyRootFilesystem": True}
    await space.apply(space.pod("user", container={"securityContext": context}))
    assert (await space.run("user", "id", "-u")).stdout == b"1000\n"
    assert (await space.run("user", "touch", "/bin/new")).exit_code != 0
    added = {"capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]}}
    await space.apply(space.pod("caps", container={"securityContext": added}))
    status = (await space.run("caps", "cat", "/proc/self/status")).stdout.decode()
    effective = next(line for line in status.splitlines() if line.startswith("CapEff"))
    assert int(effective.split()[1], 16) == 1 << 12


async def test_liveness_probe_restarts_a_stuck_container(space: Space) -> None:
    probe = {"exec": {"command": ["cat", "/tmp/alive"]}, "periodSeconds": 1, "failureThreshold": 1}
    script = ["sh", "-c", "echo started; exec sleep 3600"]
    await space.apply(space.pod("one", script, container={"livenessProbe": probe}))
    await until(lambda: space.lines("one"), holds=lambda lines: len(lines) > 1)


async def test_command_out_of_time_is_really_ended(space: Space) -> None:
    await space.apply(space.pod("one"))
    with pytest.raises(EngineError):
        await space.run("one", "sh", "-c", "sleep 3333; true", timeout_seconds=0.3)

    async def processes() -> bytes:
        return (await space.run("one", "ps")).stdout

    await until(processes, holds=lambda listing: b"3333" not in listing)


async def test_unknown_image_says_what_to_do(space: Space) -> None:
    pod = space.pod("one")
    pod["spec"]["containers"][0]["image"] = "nowhere/nothing"
    with pytest.raises(EngineError, match=r"nowhere/nothing.*[Bb]uild or import"):
        await space.apply(pod)
    await space.remove("Pod", "one")


async def test_pod_goes_on_when_the_image_it_should_change_to_is_not_there(space: Space) -> None:
    await space.apply(space.pod("one"))
    before = await space.until("one", lambda pod: pod.ready)
    changed = space.pod("one")
    changed["spec"]["containers"][0]["image"] = "nowhere/nothing"
    with pytest.raises(EngineError, match="nowhere/nothing"):
        await space.apply(changed)
    assert await space.until("one", lambda pod: pod.ready) == before


async def test_pods_outlive_the_service_and_events_go_on(space: Space, bench: PodmanBench) -> None:
    await space.apply(space.pod("one", restartPolicy="Never"))
    before = await space.until("one", lambda pod: pod.ready)
    events = bench.engine.events()
    waiting = asyncio.create_task(anext(e async for e in events if e.kind is EventKind.POD_DIED))
    service = _service(bench)
    os.kill(service, signal.SIGKILL)
    assert await space.until("one", lambda pod: pod.ready) == before
    assert _service(bench) != service
    await space.kill("one")
    event = await asyncio.wait_for(waiting, 60)
    assert event.pod.name == "one" and event.exit_code == 143


async def test_two_engines_at_once_share_one_service(space: Space, bench: PodmanBench) -> None:
    os.kill(_service(bench), signal.SIGKILL)
    engines = [bench.reopened() for _ in range(3)]
    await asyncio.gather(*(engine.observe(space.name) for engine in engines))
    assert len(_services(bench)) == 1
    for engine in engines:
        await engine.close()


async def test_everything_comes_back_after_shutdown_and_boot(bench: PodmanBench) -> None:
    space = Space(bench.engine, bench.image)
    secret = space.manifest("Secret", "login", stringData={"token": "again"})
    manifests = [
        space.namespace(),
        secret,
        space.claim("data"),
        space.pod("one", **mounted({"secret": {"secretName": "login"}}, "/login")),
        space.pod("two", **mounted({"persistentVolumeClaim": {"claimName": "data"}}, "/data")),
    ]
    await space.apply(*manifests)
    before = {pod.reference.name: pod.ip for pod in (await bench.engine.observe(space.name)).pods}
    await space.run("two", "tee", "/data/file", stdin=b"kept")
    await bench.engine.shutdown()
    assert mounts_below(bench.home) == []
    (bench.engine.layout.run / "boot_id").write_text("the boot before")
    bench.engine = space.engine = PodmanEngine(bench.home)
    seen = await bench.engine.observe(space.name)
    assert {pod.phase for pod in seen.pods} == {PodPhase.PENDING}
    await space.apply(*manifests)
    after = {pod.reference.name: pod.ip for pod in (await bench.engine.observe(space.name)).pods}
    assert after == before
    assert await space.read("one", "/login/token") == b"again"
    assert await space.read("two", "/data/file") == b"kept"
    await space.remove("Namespace", space.name)


async def test_killed_server_leaves_nothing_that_applying_again_does_not_repair(
    bench: PodmanBench,
) -> None:
    """Five servers are killed at different moments of making the same pods."""
    space = Space(bench.engine, bench.image)
    manifests = [space.namespace(), *(space.pod(f"pod-{number}") for number in range(2))]
    for milliseconds in (50, 150, 250, 400, 600):
        await _killed_server(bench.home, manifests, milliseconds / 1000)
        await space.apply(*manifests)
        seen = await bench.engine.observe(space.name)
        assert [pod.reference.name for pod in seen.pods] == ["pod-0", "pod-1"]
        assert all(pod.ready for pod in seen.pods)
        await space.remove("Namespace", space.name)
        assert not (await bench.engine.observe(space.name)).pods


async def test_full_disk_is_named(busybox_root: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    mount_tmpfs(home, size_bytes=1024 * 1024)
    engine = PodmanEngine(home)
    try:
        with pytest.raises(EngineError, match=r"[Dd]isk is full|free space"):
            await engine.import_image(busybox_root, "busybox")
    finally:
        await engine.destroy()
        unmount(home)
    assert traces_of(engine.layout) == set()


async def test_it_says_how_sizes_are_enforced(bench: PodmanBench) -> None:
    found = await bench.engine.capabilities()
    begin = "each is a file system in a file" if found.enforces_volume_size else "not enforced: "
    assert found.details["filesystem sizes"].startswith(begin)
    begin = "enforced (" if found.enforces_container_disk else "not enforced: "
    assert found.details["container disks"].startswith(begin)


async def test_destroy_may_be_repeated_and_needs_nothing_whole(tmp_path: Path) -> None:
    home = tmp_path / "home"
    engine = PodmanEngine(home)
    await engine.capabilities()
    broken = home / "podman" / "storage" / "libpod" / "bolt_state.db"
    await engine.shutdown(keep=True)
    broken.write_bytes(b"not a database")
    for _ in range(2):
        await PodmanEngine(home).destroy()
        assert traces_of(engine.layout) == set()


async def _killed_server(home: Path, manifests: list[dict[str, Any]], after_seconds: float) -> None:
    """A process of its own that applies the manifests and is killed on the way."""
    script = (
        "import asyncio, json, sys; from pathlib import Path; "
        "from neocloud.engines.manifest import read_manifest; "
        "from neocloud.engines.podman import PodmanEngine\n"
        "async def main():\n"
        "    engine = PodmanEngine(Path(sys.argv[1]))\n"
        "    await engine.capabilities()\n"
        "    print('ready', flush=True)\n"
        "    documents = json.loads(sys.stdin.readline())\n"
        "    await engine.apply([read_manifest(each) for each in documents])\n"
        "    print('done', flush=True)\n"
        "asyncio.run(main())\n"
    )
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(home), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert server.stdin and server.stdout
    server.stdin.write(json.dumps(manifests).encode() + b"\n")
    assert await server.stdout.readline() == b"ready\n"
    with contextlib.suppress(TimeoutError):
        assert await asyncio.wait_for(server.stdout.readline(), after_seconds) == b"done\n"
    with contextlib.suppress(ProcessLookupError):  # it was done, and has ended
        server.kill()
    await server.wait()


def _root_file_system(home: Path, version: str) -> Path:
    """A version of the root file system `jail`, and the link that says which one is current."""
    folder = home / "images" / "jail"
    (folder / version / "rootfs").mkdir(parents=True)
    for name in ("release", "kind"):
        (folder / version / "rootfs" / name).write_text(version)
    (folder / "rootfs").unlink(missing_ok=True)
    (folder / "rootfs").symlink_to(f"{version}/rootfs")
    return folder / version / "rootfs"


async def _connects(address: str, port: int) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), 1)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def _opens(station: Station, address: str, port: int) -> bool:
    """Return whether a connection from there is accepted."""

    def connect() -> None:
        station.make(lambda: socket.create_connection((address, port), timeout=30)).close()

    try:
        await asyncio.to_thread(connect)
    except OSError:
        return False
    return True


def _address_of_this_machine() -> str:
    """One that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.254", 9))
        return probe.getsockname()[0]


def _kill_with_its_monitor(container: str) -> None:
    """The monitor first: it would clean up after the container."""
    monitor = _monitor_of(container)
    killed = [monitor, *monitor.children(recursive=True)]
    for process in killed:
        with contextlib.suppress(psutil.NoSuchProcess):  # it went with its parent
            process.kill()
    psutil.wait_procs(killed, timeout=10)


def _monitor_of(container: str) -> psutil.Process:
    (monitor,) = [each for each in psutil.process_iter() if container in _command_of(each)]
    return monitor


def _service(bench: PodmanBench) -> int:
    return _services(bench)[0]


def _services(bench: PodmanBench) -> list[int]:
    """The processes that serve the engine's socket."""
    address = f"unix://{bench.engine.layout.socket}"
    return [process.pid for process in psutil.process_iter() if address in _command_of(process)]


def _command_of(process: psutil.Process) -> list[str]:
    """Empty for what ended while we looked."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return process.cmdline()
    return []


def _files_with(text: str, bench: PodmanBench) -> list[str]:
    folders = [str(bench.home), str(bench.engine.layout.run)]
    command = ["grep", "-rlsF", text, *folders]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
