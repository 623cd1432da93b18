"""Public addresses on the operator's network: found by ARP as long as they are in use, and left to others.

The network part of the engine runs in a namespace that is the host; other namespaces are a laptop without any
route, another machine, and two pods. The kernel is the real one.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.network import arp
from neocloud.testing.waiting import until
from tests.fast.engines.podman.wire import Lan, Station, answered, hears, lan, listening

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("nft") or not shutil.which("ip"),
    reason="network namespaces and rules need root, iproute2 and nftables",
)
PODS = {"a1": ("10.211.1.10", "52:54:00:00:00:11"), "a2": ("10.211.1.11", "52:54:00:00:00:12")}
OPEN, CLOSED = 7000, 7001
PUBLIC, ALSO_PUBLIC = "192.0.2.201", "192.0.2.202"
SECONDS = 60.0


@dataclass(frozen=True)
class Host:
    """The cloud's machine."""

    lan: Lan
    home: Path

    @asynccontextmanager
    async def engine(self, interface: str = "eth0", *, home: str = "home") -> AsyncIterator["Engine"]:
        folder = self.home / home
        arguments = [str(folder), interface, bridge_of(self.home), json.dumps(PODS)]
        process = await asyncio.create_subprocess_exec(
            *("ip", "netns", "exec", self.lan.host.name, sys.executable),
            *("-m", "tests.real.engines.podman.networks_in_namespace", *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            yield Engine(process)
        finally:
            process.kill()
            await process.wait()

    def run(self, *command: str) -> str:
        words = ["ip", "netns", "exec", self.lan.host.name, *command]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    def announcement(self, address: str) -> bytes:
        return arp.frame(mac_of(self.lan.host), IPv4Address(address), IPv4Address(address))[14:]


@dataclass(frozen=True)
class Engine:
    process: asyncio.subprocess.Process

    async def apply(self, **public: str) -> str:
        return await self._say(public)

    async def destroy(self) -> None:
        await self._say(None)

    async def warnings(self) -> str:
        return await self._say("warnings")

    async def _say(self, line: dict[str, str] | str | None) -> str:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(line).encode() + b"\n")
        answer = await asyncio.wait_for(self.process.stdout.readline(), SECONDS)
        return answer.decode().strip()


def bridge_of(home: Path) -> str:
    return f"{Layout.of(home / 'home').interface_prefix}v0"


async def reached(laptop: Station, address: str) -> str | None:
    """Return who answers, and under which address it sees the laptop."""
    return await until(lambda: laptop.tcp(address, OPEN))


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    pods = [(name, address, mac) for name, (address, mac) in PODS.items()]
    with lan(bridge_of(tmp_path), pods) as network:
        for station in (*network.pods.values(), network.other):
            await station.serve(OPEN, CLOSED)
        yield Host(network, tmp_path)


async def test_laptop_without_a_route_reaches_a_public_address_until_it_is_released(host: Host) -> None:
    laptop, a1, a2 = host.lan.laptop, host.lan.pods["a1"].name, host.lan.pods["a2"].name
    async with host.engine() as engine:
        assert await engine.apply() == "none"
        with listening(laptop) as ear:
            assert await engine.apply(a1=PUBLIC) == PUBLIC
            assert await hears(ear, host.announcement(PUBLIC))
        assert await reached(laptop, PUBLIC) == f"{a1} {laptop.address}"
        await until(lambda: answered(laptop, "eth0", PUBLIC))
        assert await laptop.tcp(PUBLIC, CLOSED) is None, "its security group lets nobody in there"
        assert not answered(host.lan.behind, "eth0", PUBLIC), "it is another network"
        with listening(laptop) as ear:
            assert await engine.apply(a2=PUBLIC) == PUBLIC
            assert await hears(ear, host.announcement(PUBLIC))
        assert await reached(laptop, PUBLIC) == f"{a2} {laptop.address}"
        assert await engine.apply() == "none"
        assert await laptop.tcp(PUBLIC, OPEN) is None
        assert not answered(laptop, "eth0", PUBLIC)


async def test_address_of_another_machine_is_left_to_it(host: Host) -> None:
    """When it is assigned, and after a boot, when nothing is left in the kernel."""
    laptop, other = host.lan.laptop, host.lan.other
    async with host.engine() as engine:
        assert await engine.apply(a1=PUBLIC, a2=ALSO_PUBLIC) == f"{PUBLIC}, {ALSO_PUBLIC}"
    layout = Layout.of(host.home / "home")
    for family in ("arp", "inet", "bridge"):
        host.run("nft", "delete", "table", family, layout.table)
    for address in (PUBLIC, ALSO_PUBLIC):
        host.run("ip", "address", "delete", f"{address}/32", "dev", "lo")
    host.lan.add_to_other(PUBLIC)
    async with host.engine() as engine:
        assert "192.0.2.1 belongs to eth0 of this machine" in await engine.apply(a1="192.0.2.1")
        assert f"{PUBLIC} is in use by another machine" in await engine.apply(a1=PUBLIC)
        assert await engine.apply(a2=ALSO_PUBLIC) == ALSO_PUBLIC
        assert await reached(laptop, PUBLIC) == f"{other.name} {laptop.address}"
        assert f" {PUBLIC}/" not in host.run("ip", "address")


async def test_machine_that_takes_an_announced_address_is_named_and_keeps_it_after_an_outage(
    host: Host,
) -> None:
    """It learns that the address is ours; while our link is down, it may have become that of the machine."""
    laptop, other = host.lan.laptop, host.lan.other
    async with host.engine() as engine:
        assert await engine.apply(a1=PUBLIC) == PUBLIC
        host.lan.add_to_other(PUBLIC)
        with listening(laptop) as ear:
            other.make(lambda: arp.announce("eth0", [IPv4Address(PUBLIC)]))
            assert await hears(ear, host.announcement(PUBLIC))
        assert f"{PUBLIC} ({mac_of(other)})" in await engine.warnings()
        host.lan.unplug()
        host.lan.plug_in()
        assert f"{PUBLIC} is in use by another machine" in await engine.apply(a1=PUBLIC)
        assert await reached(laptop, PUBLIC) == f"{other.name} {laptop.address}"


def mac_of(station: Station) -> str:
    words = ["ip", "-json", "-netns", station.name, "link", "show", "eth0"]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return json.loads(found)[0]["address"]


async def test_announced_addresses_survive_the_server_and_go_with_the_cloud(host: Host) -> None:
    """Another cloud beside it, on the same interface, neither takes them nor loses its own."""
    laptop, a1 = host.lan.laptop, host.lan.pods["a1"].name
    async with host.engine() as engine:
        await engine.apply(a1=PUBLIC)
    assert await reached(laptop, PUBLIC) == f"{a1} {laptop.address}", "the server was killed"
    async with host.engine(home="beside") as beside:
        assert f"{PUBLIC} belongs to another cloud" in await beside.apply(a1=PUBLIC)
        assert await beside.apply(a2=ALSO_PUBLIC) == ALSO_PUBLIC
        await until(lambda: answered(laptop, "eth0", PUBLIC, ALSO_PUBLIC) == {PUBLIC, ALSO_PUBLIC})
        async with host.engine() as engine:
            assert await engine.apply(a1=PUBLIC) == PUBLIC
            await engine.destroy()
        await until(lambda: answered(laptop, "eth0", PUBLIC, ALSO_PUBLIC) == {ALSO_PUBLIC})
        await beside.destroy()
    assert host.run("nft", "list", "tables") == ""
    assert "192.0.2.20" not in host.run("ip", "address", "show", "lo")
