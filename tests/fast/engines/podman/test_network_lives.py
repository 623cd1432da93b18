"""VPC-01, CMP-11: pods keep their place on a virtual network through restarts, boots, crashes and moves."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from neocloud.engines.base import Reference
from neocloud.engines.podman import PodmanEngine
from neocloud.testing.engine_conformance import OPEN_RULES, SERVE
from neocloud.testing.engine_space import Space, on_network
from neocloud.testing.waiting import until
from tests.fast.engines.podman.conftest import PodmanBench
from tests.fast.engines.podman.wire import (
    Station,
    addresses_of_this_machine,
    frame,
    hears,
    listening,
    send_frame,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVER, CLIENT, PUBLIC = "10.210.7.9", "10.210.7.8", "203.0.113.211"


@pytest_asyncio.fixture(loop_scope="module")
async def space(bench: PodmanBench) -> AsyncIterator[Space]:
    """A server and a client on one subnet."""
    space = Space(bench.engine, bench.image)
    await space.apply(space.namespace(), space.network("lab", 7, *OPEN_RULES), server(space), client(space))
    await until(lambda: space.reaches("client", "server"))
    yield space
    await bench.engine.remove([Reference("Namespace", space.name, space.name)])


def server(space: Space, **spec: Any) -> dict[str, Any]:
    return on_network(space.pod("server", SERVE, **spec), space.name, SERVER)


def client(space: Space) -> dict[str, Any]:
    return on_network(space.pod("client"), space.name, CLIENT)


async def is_held_to_its_addresses(space: Space) -> bool:
    """Frames of the server under its own address arrive, under another not."""
    sender, receiver = await station(space, "server"), await station(space, "client")
    own, other = os.urandom(8), os.urandom(8)
    macs = "52:54:00:00:00:09", "52:54:00:00:00:08"
    with listening(receiver) as ear:
        send_frame(sender, frame(*macs, "10.210.7.77", CLIENT, other))
        assert not await hears(ear, other)
        send_frame(sender, frame(*macs, SERVER, CLIENT, own))
        return await hears(ear, own)


async def station(space: Space, name: str) -> Station:
    """The network of a pod, by any process in it."""
    network = (await space.run(name, "sh", "-c", "readlink /proc/1/ns/net")).stdout.decode().strip()
    for process in psutil.process_iter():
        try:
            if os.readlink(f"/proc/{process.pid}/ns/net") == network:
                return Station(name, "", f"/proc/{process.pid}/ns/net")
        except OSError:
            continue
    raise AssertionError(f"no process in the network of {name}")


async def test_restarted_pod_is_on_its_new_port_at_once(space: Space) -> None:
    await space.engine.restart(space.reference("Pod", "server"))
    await until(lambda: space.reaches("client", "server"))
    assert await is_held_to_its_addresses(space)


async def test_pod_that_died_comes_back_to_its_place(space: Space) -> None:
    await space.kill("server")
    await space.until("server", lambda pod: pod.ready and pod.restart_count == 1)
    await until(lambda: space.reaches("client", "server"))
    assert await is_held_to_its_addresses(space)


async def test_everything_is_in_place_after_a_boot(space: Space, bench: PodmanBench) -> None:
    public = on_network(space.pod("server", SERVE), space.name, SERVER, publicAddress=PUBLIC)
    await space.apply(public)
    assert PUBLIC in addresses_of_this_machine()
    await bench.engine.shutdown()
    assert PUBLIC not in addresses_of_this_machine()
    (bench.engine.layout.run / "boot_id").write_text("the boot before")
    for family in ("inet", "bridge"):
        subprocess.run(["nft", "delete", "table", family, bench.engine.layout.table], check=True)
    bench.engine = space.engine = PodmanEngine(bench.home)
    await bench.engine.observe(space.name)
    assert PUBLIC in addresses_of_this_machine()
    await space.apply(space.namespace(), space.network("lab", 7, *OPEN_RULES), server(space), client(space))
    await until(lambda: space.reaches("client", SERVER))
    assert await is_held_to_its_addresses(space)


async def test_rules_that_somebody_removed_come_back_with_the_next_apply(
    space: Space, bench: PodmanBench
) -> None:
    table = bench.engine.layout.table
    await space.apply(space.namespace())
    for _ in range(2):  # what is loaded again counts as the engine's own, too
        subprocess.run(["nft", "delete", "table", "inet", table], check=True)
        await space.apply(space.namespace())
        subprocess.run(["nft", "list", "table", "inet", table], check=True, capture_output=True)


async def test_several_containers_share_one_place(space: Space) -> None:
    manifest = server(space)
    main = manifest["spec"]["containers"][0]
    manifest["spec"]["containers"].append({**main, "name": "second", "command": ["sleep", "3600"]})
    await space.apply(manifest)
    await until(lambda: space.reaches("client", "server"))
    found = await space.run("server", "ip", "address", "show", "eth0", container="second")
    assert SERVER.encode() in found.stdout and b"52:54:00:00:00:09" in found.stdout
    await space.engine.restart(space.reference("Pod", "server"))
    await until(lambda: space.reaches("client", "server"))


async def test_pod_moves_between_its_namespace_and_a_subnet(space: Space) -> None:
    await space.apply(space.pod("server", SERVE))
    moved = await space.until("server", lambda pod: pod.ready)
    assert moved.ip and moved.ip != SERVER
    assert not await space.reaches("client", moved.ip) and not await space.reaches("client", SERVER)
    await space.apply(server(space))
    await until(lambda: space.reaches("client", SERVER))


async def test_engine_killed_at_any_moment_leaves_what_applying_again_repairs(
    space: Space, bench: PodmanBench
) -> None:
    script = (
        "import asyncio, json, sys; from pathlib import Path; "
        "from neocloud.engines.manifest import read_manifest; "
        "from neocloud.engines.podman import PodmanEngine\n"
        "async def main():\n"
        "    engine = PodmanEngine(Path(sys.argv[1]))\n"
        "    await engine.apply([read_manifest(json.loads(sys.argv[2]))])\n"
        "asyncio.run(main())\n"
    )
    for seconds in (0.5, 0.8, 1.1):
        await space.remove("Pod", "server")
        process = subprocess.Popen([sys.executable, "-c", script, str(bench.home), json.dumps(server(space))])
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        await space.apply(server(space))
        await until(lambda: space.reaches("client", "server"))
        assert await is_held_to_its_addresses(space)


@pytest.mark.skipif(not Path("/dev/net/tun").exists(), reason="no /dev/net/tun")
async def test_device_of_this_machine_can_be_used(space: Space) -> None:
    """A tap device, as virtual machines have theirs."""
    pod = space.pod("tapped", container={"securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}})
    pod["spec"]["volumes"] = [{"name": "tun", "hostPath": {"path": "/dev/net/tun", "type": "CharDevice"}}]
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "tun", "mountPath": "/dev/net/tun"}]
    await space.apply(pod)
    made = await space.run("tapped", "busybox", "tunctl", "-t", "tap0")
    assert made.exit_code == 0, made
    without = space.pod("plain", container={"securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}})
    await space.apply(without)
    assert (await space.run("plain", "busybox", "tunctl", "-t", "tap0")).exit_code != 0
