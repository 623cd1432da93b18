"""Sockets inside the networks of pods, to see which packets arrive.

A socket stays in the network it was made in, so a thread steps into a pod's network, makes one and is done;
from then on this process holds both ends of every exchange.
"""

import asyncio
import contextlib
import ctypes
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from typing import TypeVar, cast

from neocloud.engines.podman.network import arp
from tests import leftovers

WAIT_SECONDS = 0.7
"""How long an answer may take; what is dropped never answers."""
_NETWORK = 0x40000000
_ECHO_REQUEST = 8
IP_FREEBIND = 15  # of Linux; Python has no name for it
WORLD = IPv4Network("198.51.100.0/24")
"""Where `outside` is. It is closed to pods, as it is no part of the internet, unless an engine opens it."""
Made = TypeVar("Made")


@dataclass
class Station:
    """One network: a pod's, or this machine's when no other is named."""

    name: str
    address: str
    network: str = ""
    """Where the kernel shows it, such as /proc/7/ns/net."""
    servers: list[asyncio.AbstractServer | asyncio.DatagramTransport] = field(default_factory=list)

    def make(self, job: Callable[[], Made]) -> Made:
        """Run a short job in this network."""
        if not self.network:
            return job()
        made: list[Made] = []
        failures: list[OSError] = []

        def inside() -> None:
            try:
                with open(self.network) as network:
                    if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), _NETWORK):
                        raise OSError(ctypes.get_errno(), "setns")
                made.append(job())
            except OSError as error:
                failures.append(error)

        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
        if failures:
            raise failures[0]
        return made[0]

    async def serve(self, *ports: int, address: str = "0.0.0.0") -> None:
        """Answer on TCP and UDP with the station's name and the address that the caller is seen under.

        A station with several addresses answers UDP under the one that was asked only where it is named.
        """
        for port in ports:
            tcp = self.make(lambda port=port: _bound(socket.SOCK_STREAM, address, port))
            self.servers.append(await asyncio.start_server(self._answer, sock=tcp))
            udp = self.make(lambda port=port: _bound(socket.SOCK_DGRAM, address, port))
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_datagram_endpoint(lambda: _Echo(self.name), sock=udp)
            self.servers.append(transport)

    def close(self) -> None:
        for server in self.servers:
            server.close()

    async def tcp(self, address: str, port: int) -> str | None:
        """Return the server's answer; None when nothing arrives."""
        client = self.make(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        return await self._ask(client, address, port, connected=True)

    async def udp(self, address: str, port: int) -> str | None:
        client = self.make(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        return await self._ask(client, address, port, connected=False)

    async def ping(self, address: str) -> bool:
        client = self.make(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        mark = os.urandom(8)
        with client, contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(WAIT_SECONDS):
                await loop.sock_sendto(client, _echo_request(mark), (address, 0))
                while True:
                    answer = await loop.sock_recv(client, 1500)
                    if answer.endswith(mark) and answer[20] == 0:
                        return True
        return False

    @contextlib.contextmanager
    def conversation(self, address: str, port: int) -> Iterator[Callable[[], Awaitable[str | None]]]:
        """One UDP flow, that the firewall takes for one connection, to ask in again and again."""
        client = self.make(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        client.setblocking(False)

        async def say() -> str | None:
            loop = asyncio.get_running_loop()
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(WAIT_SECONDS):
                    await loop.sock_sendto(client, b"?", (address, port))
                    return (await loop.sock_recv(client, 100)).decode()
            return None

        with client:
            yield say

    async def _ask(self, client: socket.socket, address: str, port: int, *, connected: bool) -> str | None:
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        with client, contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(WAIT_SECONDS):
                await loop.sock_connect(client, (address, port))
                if not connected:
                    await loop.sock_sendall(client, b"?")
                answer = await loop.sock_recv(client, 100)
                return answer.decode() or None
        return None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_said(self.name, writer.get_extra_info("peername")))
        with contextlib.suppress(OSError):
            await writer.drain()
            await reader.read()
        writer.close()


class _Echo(asyncio.DatagramProtocol):
    def __init__(self, name: str) -> None:
        self._name = name

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._transport.sendto(_said(self._name, addr), addr)


def _said(name: str, peer: tuple[str, int]) -> bytes:
    return f"{name} {peer[0]}".encode()


def _bound(kind: int, address: str, port: int) -> socket.socket:
    server = socket.socket(socket.AF_INET, kind)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)  # the engine adds the address of a platform service
    server.bind((address, port))
    server.setblocking(False)
    return server


def _echo_request(mark: bytes) -> bytes:
    header = struct.pack("!BBHHH", _ECHO_REQUEST, 0, 0, os.getpid() & 0xFFFF, 1)
    return struct.pack("!BBHHH", _ECHO_REQUEST, 0, checksum(header + mark), os.getpid() & 0xFFFF, 1) + mark


def checksum(data: bytes) -> int:
    words = struct.unpack(f"!{len(data) // 2}H", data)
    total = sum(words)
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def frame(source_mac: str, target_mac: str, source: str, target: str, mark: bytes) -> bytes:
    """An echo request as it goes over the wire, under whatever addresses."""
    ethernet = bytes.fromhex((target_mac + source_mac).replace(":", "")) + b"\x08\x00"
    body = _echo_request(mark)
    addresses = socket.inet_aton(source) + socket.inet_aton(target)
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 1, 0, 64, 1, 0) + addresses
    header = header[:10] + struct.pack("!H", checksum(header)) + header[12:]
    return ethernet + header + body


def resolution(source_mac: str, claimed: str, target_mac: str, target: str) -> bytes:
    """An answer of address resolution that nobody asked for."""
    hardware = bytes.fromhex(source_mac.replace(":", "")), bytes.fromhex(target_mac.replace(":", ""))
    header = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 2)
    body = header + hardware[0] + socket.inet_aton(claimed) + hardware[1] + socket.inet_aton(target)
    return hardware[1] + hardware[0] + b"\x08\x06" + body


@dataclass
class World(Station):
    """A network behind an interface of this machine."""

    host: str = ""
    """This machine's address on that interface."""


@contextlib.contextmanager
def outside(*addresses: str) -> Iterator[World]:
    """A network of another machine, as far as this one can tell: `world`, behind an interface of its own.

    It has these addresses, too, and this machine knows the way to them: only one world at a time can have
    them. Its own two addresses are a range that no other world has, of whichever process.
    """
    name = f"{leftovers.NAMESPACES}{os.getpid()}-world"
    _ip("netns", "add", name)
    try:
        here, network = _interface_to(name)
        host, there = (str(address) for address in network.hosts())
        world = World("world", there, f"/run/netns/{name}", host=host)
        _ip("address", "add", f"{host}/{network.prefixlen}", "dev", here)
        _ip("link", "set", here, "up")
        _ip("-netns", name, "address", "add", f"{there}/{network.prefixlen}", "dev", "eth0")
        _ip("-netns", name, "link", "set", "eth0", "up")
        _ip("-netns", name, "route", "add", "default", "via", host)
        for address in addresses:
            _ip("-netns", name, "address", "add", f"{address}/32", "dev", "eth0")
            _ip("route", "add", f"{address}/32", "via", there, "dev", here)
        try:
            yield world
        finally:
            world.close()
            _ip("link", "delete", here)
    finally:
        _ip("netns", "delete", name)


def _interface_to(namespace: str) -> tuple[str, IPv4Network]:
    """Make an interface that leads to `eth0` of a namespace; return its name and a range of its own.

    The kernel gives a name only once, so that two processes cannot take the same range.
    """
    for number, network in enumerate(WORLD.subnets(new_prefix=30)):
        card = f"ncworld{number}"
        command = ["ip", "link", "add", card, "type", "veth", "peer", "name", "eth0", "netns", namespace]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return card, network
    raise RuntimeError(f"No interface could be made, or all ranges of {WORLD} are in use.")


@dataclass(frozen=True)
class Lan:
    """A host with two pods on a bridge in a network with two machines that have no other route."""

    host: Station
    laptop: Station
    other: Station
    behind: Station
    """On another interface of the host, `eth1`."""
    pods: dict[str, Station]

    def add_to_other(self, address: str) -> None:
        _ip("-netns", self.other.name, "address", "add", f"{address}/24", "dev", "eth0")

    def remove_from_other(self, address: str) -> None:
        _ip("-netns", self.other.name, "address", "delete", f"{address}/24", "dev", "eth0")

    def unplug(self) -> None:
        """Pull the host's cable out of the switch."""
        _ip("-netns", self.laptop.name, "link", "set", "cable1", "down")

    def plug_in(self) -> None:
        _ip("-netns", self.laptop.name, "link", "set", "cable1", "up")


@contextlib.contextmanager
def lan(bridge: str, pods: Sequence[tuple[str, str, str]]) -> Iterator[Lan]:
    """192.0.2.0/24: the host at .1, a laptop at .50, which is also the switch, and another machine at .51.

    All are network namespaces: nothing of this machine is changed. `pods`: name, address and MAC of each.
    Packets to the host have to come by the interface that leads back to their sender (rp_filter).
    """
    names = ("host", "laptop", "other", "behind", *(name for name, _, _ in pods))
    spaces = {name: f"{leftovers.NAMESPACES}{os.getpid()}-{name}" for name in names}
    addresses = {"host": "192.0.2.1", "laptop": "192.0.2.50", "other": "192.0.2.51", "behind": "198.51.100.2"}
    addresses |= {name: address for name, address, _ in pods}
    found = {name: Station(spaces[name], addresses[name], f"/run/netns/{spaces[name]}") for name in names}
    try:
        for name in spaces.values():
            _ip("netns", "add", name)
            _ip("-netns", name, "link", "set", "lo", "up")
        host, laptop = spaces["host"], spaces["laptop"]
        _ip("-netns", laptop, "link", "add", "eth0", "type", "bridge", "forward_delay", "0")
        _cable(laptop, "cable1", host, "eth0", master="eth0")
        _cable(laptop, "cable2", spaces["other"], "eth0", master="eth0")
        _cable(host, "eth1", spaces["behind"], "eth0")
        _ip("-netns", host, "link", "add", bridge, "type", "bridge", "forward_delay", "0")
        for name, address, mac in pods:
            _cable(host, f"port-{name}", spaces[name], "eth0", master=bridge)
            _ip("-netns", spaces[name], "link", "set", "eth0", "address", mac)
            _ip("-netns", spaces[name], "address", "add", f"{address}/24", "dev", "eth0")
            _ip("-netns", spaces[name], "link", "set", "eth0", "up")
            _ip("-netns", spaces[name], "route", "add", "default", "via", f"{address.rpartition('.')[0]}.1")
        places = [
            (bridge, f"{pods[0][1].rpartition('.')[0]}.1"),
            ("eth0", "192.0.2.1"),
            ("eth1", "198.51.100.1"),
        ]
        for card, address in places:
            _ip("-netns", host, "address", "add", f"{address}/24", "dev", card)
            _ip("-netns", host, "link", "set", card, "up")
        for name in ("laptop", "other", "behind"):
            _ip("-netns", spaces[name], "address", "add", f"{addresses[name]}/24", "dev", "eth0")
            _ip("-netns", spaces[name], "link", "set", "eth0", "up")
        options = ("net.ipv4.ip_forward=1", "net.ipv4.conf.eth0.rp_filter=1")
        _ip("netns", "exec", host, "sysctl", "-qw", *options)
        stations = {name: found[name] for name, _, _ in pods}
        yield Lan(found["host"], found["laptop"], found["other"], found["behind"], stations)
    finally:
        for station in found.values():
            station.close()
            subprocess.run(["ip", "netns", "delete", station.name], capture_output=True, check=False)


def _cable(first: str, card: str, second: str, other_card: str, *, master: str = "") -> None:
    """Connect two namespaces; `master` is a bridge of the first one."""
    _ip("-netns", first, "link", "add", card, "type", "veth", "peer", "name", other_card, "netns", second)
    _ip("-netns", first, "link", "set", card, *(["master", master] if master else []), "up")


def answered(station: Station, card: str, *addresses: str) -> set[str]:
    """The addresses for which anybody answers ARP requests on this card of the station."""
    asked = [IPv4Address(address) for address in addresses]
    return {str(found) for found in station.make(lambda: arp.probe(card, asked))}


def addresses_of_this_machine() -> str:
    return _ip("-4", "address")


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def listening(station: Station) -> Iterator[socket.socket]:
    """Every frame that arrives at the pod's card."""
    ear = station.make(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003)))
    with ear:
        ear.bind(("eth0", 0))
        ear.setblocking(False)
        yield ear


def send_frame(station: Station, content: bytes) -> None:
    with station.make(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)) as out:
        out.bind(("eth0", 0))
        out.send(content)


async def hears(ear: socket.socket, mark: bytes) -> bool:
    """Return whether a frame with this mark arrives."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                if mark in await loop.sock_recv(ear, 2000):
                    return True
    return False
