"""VPC-01, VPC-03, CMP-12: which packets arrive between pods on virtual networks, this machine and the world.

Two networks with real pods, made once. Every question is put with packets from inside the pods' networks.
"""

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from neocloud.engines.base import EngineError, PodPhase, Reference
from neocloud.engines.manifest import Manifest, Namespace, read_manifest
from neocloud.engines.manifest.base import PLATFORM_SERVICES_ANNOTATION
from neocloud.engines.manifest.pod import INTERFACE_ANNOTATION
from neocloud.engines.podman import PodmanEngine
from neocloud.engines.podman.libpod import Libpod
from neocloud.testing.waiting import until
from tests.fast.engines.podman.conftest import PodmanBench, traces_of
from tests.fast.engines.podman.wire import (
    Station,
    addresses_of_this_machine,
    frame,
    hears,
    listening,
    outside,
    resolution,
    send_frame,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPEN, CLOSED = 7000, 7001
HOST = Station("host", "")
PUBLIC, OTHER_PUBLIC = "203.0.113.201", "203.0.113.202"


def rule(direction: str, **fields: Any) -> dict[str, Any]:
    return {"direction": direction, "access": "allow", "protocol": "any", **fields}


def subnet(name: str, number: int, *routes: str) -> dict[str, Any]:
    return {
        "name": name,
        "cidrs": [f"10.211.{number}.0/24"],
        "gateway": f"10.211.{number}.1",
        "routes": [{"destination": route, "nextHop": "egress"} for route in routes],
    }


GROUPS = {
    "everything": [rule("ingress"), rule("egress")],
    "server": [
        rule("ingress", access="deny", cidrs=["10.211.1.66/32"]),
        rule("ingress", protocol="tcp", ports=[OPEN], cidrs=["0.0.0.0/0"]),
        rule("ingress", protocol="udp", groups=["friends"]),
        rule("ingress", protocol="icmp", groups=["friends"]),
    ],
    "friends": [rule("egress")],
    "stateless": [
        rule("ingress", protocol="tcp", ports=[OPEN], stateful=False),
        rule("egress", protocol="udp", stateful=False),
    ],
    "nothing": [],
}


@dataclass
class Lab:
    """The networks, their pods, and what each pod is now."""

    engine: PodmanEngine
    stations: dict[str, Station] = field(default_factory=dict)
    groups: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: dict(GROUPS))
    with_service: str = "a"
    """The network that names the platform service."""

    def network(self, letter: str, *subnets: dict[str, Any]) -> Manifest:
        groups = [{"name": name, "rules": rules} for name, rules in self.groups.items()]
        spec = {"subnets": list(subnets), "securityGroups": groups, "domain": f"{letter}.internal"}
        services = {PLATFORM_SERVICES_ANNOTATION: "storage"} if letter == self.with_service else {}
        metadata = {"name": f"net-{letter}", "namespace": f"net-{letter}", "annotations": services}
        return read_manifest({"kind": "VirtualNetwork", "metadata": metadata, "spec": spec})

    def net_a(self) -> Manifest:
        return self.network("a", subnet("one", 1, "0.0.0.0/0"), subnet("two", 2))

    async def change_groups(self, **groups: list[dict[str, Any]]) -> None:
        self.groups |= groups
        await self.engine.apply([self.net_a()])

    async def pod(self, name: str, **changes: Any) -> None:
        await self.engine.apply([read_manifest(pod(name, **changes))])

    def __getitem__(self, name: str) -> Station:
        return self.stations[name]


PLACES = {
    "a1": ("net-a", "one", "10.211.1.10"),
    "a2": ("net-a", "one", "10.211.1.11"),
    "a3": ("net-a", "two", "10.211.2.10"),
    "b1": ("net-b", "one", "10.211.3.10"),
}
BROADCAST = "ff:ff:ff:ff:ff:ff"


def pod(name: str, groups: list[str] | None = None, public: str | None = None, **spec: Any) -> dict[str, Any]:
    network, subnet_name, address = PLACES[name]
    fields = {
        "network": network,
        "subnet": subnet_name,
        "address": address,
        "mac": mac(name),
        "securityGroups": ["everything"] if groups is None else groups,
        **({"publicAddress": public} if public else {}),
    }
    container = {"name": "main", "image": "busybox", "command": ["httpd", "-f", "-p", "8080"]}
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": f"space-{name}",
            "annotations": {INTERFACE_ANNOTATION: json.dumps(fields)},
        },
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [{**container, **spec}]},
    }


def mac(name: str) -> str:
    return f"52:54:00:00:00:{list(PLACES).index(name):02x}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lab(bench: PodmanBench) -> AsyncIterator[Lab]:
    lab = Lab(bench.engine)
    namespaces = [Namespace(name=name) for name in ("net-a", "net-b", *(f"space-{name}" for name in PLACES))]
    networks = [lab.net_a(), lab.network("b", subnet("one", 3, "0.0.0.0/0"))]
    await lab.engine.apply([*namespaces, *networks, *(read_manifest(pod(name)) for name in PLACES)])
    for name in PLACES:
        await restation(lab, name)
    try:
        yield lab
    finally:
        for station in lab.stations.values():
            station.close()
        names = [*(f"space-{name}" for name in PLACES), "net-a", "net-b"]
        await lab.engine.remove([Reference("Namespace", name, name) for name in names])
        assert "203.0.113" not in addresses_of_this_machine()
        assert traces_of_networks(lab.engine) == []


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def as_at_first(lab: Lab) -> AsyncIterator[None]:
    yield
    lab.groups, lab.with_service = dict(GROUPS), "a"
    await lab.engine.apply([lab.net_a(), *(read_manifest(pod(name)) for name in PLACES)])


async def network_of(engine: PodmanEngine, name: str, space: str = "") -> str:
    async def nothing() -> None:
        return

    libpod = Libpod(engine.layout.socket, nothing)
    try:
        found = await libpod.get(f"/containers/{space or f'space-{name}'}.{name}.main/json")
        return f"/proc/{found['State']['Pid']}/ns/net"
    finally:
        await libpod.close()


def own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.254", 9))
        return probe.getsockname()[0]


def traces_of_networks(engine: PodmanEngine) -> list[str]:
    marks = (f'"{engine.layout.interface_prefix}v', f"table bridge {engine.layout.table}")
    rules = subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True, check=True).stdout
    bridges = [path.name for path in Path("/sys/class/net").iterdir()]
    found = [name for name in bridges if name.startswith(f"{engine.layout.interface_prefix}v")]
    return found + [line for line in rules.splitlines() if any(mark in line for mark in marks)]


async def every(*questions: Any) -> list[Any]:
    return list(await asyncio.gather(*questions))


async def test_pods_of_a_network_reach_each_other_under_their_own_addresses(lab: Lab) -> None:
    a1, a2, a3 = lab["a1"], lab["a2"], lab["a3"]
    assert await every(a1.tcp(a2.address, OPEN), a1.udp(a2.address, OPEN), a1.ping(a2.address)) == [
        "a2 10.211.1.10",
        "a2 10.211.1.10",
        True,
    ]
    assert await every(
        a1.tcp(a3.address, OPEN), a1.udp(a3.address, OPEN), a3.tcp(a1.address, OPEN), a3.ping(a2.address)
    ) == ["a3 10.211.1.10", "a3 10.211.1.10", "a1 10.211.2.10", True]


async def test_networks_do_not_reach_each_other(lab: Lab) -> None:
    a1, b1 = lab["a1"], lab["b1"]
    assert await every(
        a1.tcp(b1.address, OPEN),
        a1.udp(b1.address, OPEN),
        a1.ping(b1.address),
        b1.tcp(a1.address, OPEN),
        b1.ping(a1.address),
    ) == [None, None, False, None, False]


async def test_only_what_a_rule_allows_arrives(lab: Lab) -> None:
    """Between two pods of one bridge, over a router, and from this machine."""
    await lab.pod("a2", groups=["server"])
    a1, a2, a3 = lab["a1"], lab["a2"], lab["a3"]
    for sender, seen in ((a1, "10.211.1.10"), (a3, "10.211.2.10"), (HOST, "10.211.1.1")):
        assert await every(
            sender.tcp(a2.address, OPEN),
            sender.tcp(a2.address, CLOSED),
            sender.udp(a2.address, OPEN),
            sender.ping(a2.address),
        ) == [f"a2 {seen}", None, None, False]
    # It may answer, and has no rule that lets it begin anything.
    assert await every(a2.tcp(a1.address, OPEN), a2.udp(a3.address, OPEN)) == [None, None]


async def test_rules_hold_for_members_of_a_group_wherever_they_are(lab: Lab) -> None:
    await lab.pod("a2", groups=["server"])
    await lab.pod("a3", groups=["friends"])
    a1, a2, a3 = lab["a1"], lab["a2"], lab["a3"]
    assert await every(
        a3.udp(a2.address, CLOSED), a3.ping(a2.address), a1.udp(a2.address, CLOSED), a1.ping(a2.address)
    ) == ["a2 10.211.2.10", True, None, False]
    await lab.pod("a3", groups=[])
    assert await every(a3.udp(a2.address, CLOSED), a3.ping(a2.address)) == [None, False]
    await lab.pod("a1", groups=["friends"])
    assert await a1.udp(a2.address, CLOSED) == "a2 10.211.1.10"


async def test_first_rule_that_matches_decides(lab: Lab) -> None:
    from_a1 = {"cidrs": ["10.211.1.10/32"], "protocol": "tcp"}
    deny, allow = rule("ingress", access="deny", **from_a1), rule("ingress", protocol="tcp")
    await lab.change_groups(first=[deny, allow], second=[allow, deny])
    await lab.pod("a2", groups=["first"])
    a1, a2, a3 = lab["a1"], lab["a2"], lab["a3"]
    assert await every(a1.tcp(a2.address, OPEN), a3.tcp(a2.address, OPEN)) == [None, "a2 10.211.2.10"]
    await lab.pod("a2", groups=["second"])
    assert await a1.tcp(a2.address, OPEN) == "a2 10.211.1.10"


async def test_stateless_rules_let_no_answer_pass(lab: Lab) -> None:
    await lab.pod("a2", groups=["stateless"])
    a1, a2 = lab["a1"], lab["a2"]
    assert await every(a1.tcp(a2.address, OPEN), a2.udp(a1.address, OPEN)) == [None, None]
    both = [rule("ingress", stateful=False), rule("egress", stateful=False)]
    await lab.change_groups(stateless=both)
    assert await every(a1.tcp(a2.address, OPEN), a2.udp(a1.address, OPEN)) == [
        "a2 10.211.1.10",
        "a1 10.211.1.11",
    ]


async def test_interface_in_no_group_is_cut_off_and_the_pod_goes_on(lab: Lab) -> None:
    before = (await lab.engine.observe("space-a2")).pod("a2")
    await lab.pod("a2", groups=[])
    a1, a2 = lab["a1"], lab["a2"]
    assert await every(
        a1.tcp(a2.address, OPEN), HOST.tcp(a2.address, OPEN), a2.tcp(a1.address, OPEN), a2.ping(a1.address)
    ) == [None, None, None, False]
    after = (await lab.engine.observe("space-a2")).pod("a2")
    assert before and after and before.started_at == after.started_at


async def test_open_connection_ends_with_the_rule_that_let_it_in(lab: Lab) -> None:
    a1, a2 = lab["a1"], lab["a2"]
    client = a1.make(lambda: socket.create_connection((a2.address, 8080), timeout=30))
    with client:
        await lab.pod("a2", groups=["nothing"])
        client.settimeout(0.7)
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(client.recv, 100)


async def test_world_is_reached_only_where_a_route_leads_out(lab: Lab) -> None:
    """The world is a network behind this machine."""
    with outside() as world:
        await world.serve(OPEN)
        a1, a3, b1 = lab["a1"], lab["a3"], lab["b1"]
        assert await every(
            a1.tcp(world.address, OPEN), a1.ping(world.address), b1.udp(world.address, OPEN)
        ) == [f"world {world.host}", True, f"world {world.host}"]
        assert await every(a3.tcp(world.address, OPEN), a3.ping(world.address)) == [None, False]
        # From outside nothing leads in, though the way is known.
        assert await every(world.tcp(a1.address, OPEN), world.ping(a1.address)) == [None, False]
        await lab.pod("a1", groups=["server"])
        assert await a1.tcp(world.address, OPEN) is None


async def test_services_of_this_machine_are_out_of_reach(lab: Lab) -> None:
    a1 = lab["a1"]
    with socket.create_server(("0.0.0.0", 0)) as service:
        port = service.getsockname()[1]
        for address in ("10.211.1.1", "10.211.2.1", "10.211.3.1", own_address()):
            assert await every(a1.tcp(address, port), a1.ping(address)) == [None, False]


async def test_of_a_platform_service_only_its_port_is_reached(lab: Lab, bench: PodmanBench) -> None:
    """Something listens on both ports that are asked besides, by TCP and by UDP."""
    service = bench.platform_service
    address, port, target = str(service.address), service.port, service.target_port
    a1, a3, b1 = lab["a1"], lab["a3"], lab["b1"]
    assert await every(a1.tcp(address, port), a3.tcp(address, port)) == [
        "storage 10.211.1.10",
        "storage 10.211.2.10",
    ]
    for other in (target, 18081, 22):
        assert await every(a1.tcp(address, other), a1.udp(address, other)) == [None, None]
    assert await every(a1.udp(address, port), a1.ping(address)) == [None, False]
    for elsewhere in ("10.211.1.1", own_address(), str(service.address + 1)):
        assert await every(a1.tcp(elsewhere, port), a1.tcp(elsewhere, target)) == [None, None]
    with outside() as world:
        assert await every(world.tcp(address, port), world.tcp(address, target)) == [None, None]
    # Another network does not name it.
    assert await every(b1.tcp(address, port), b1.tcp(address, target)) == [None, None]


async def test_platform_service_is_subject_to_rules_and_to_the_network(lab: Lab, bench: PodmanBench) -> None:
    address, port = str(bench.platform_service.address), bench.platform_service.port
    a1, a2 = lab["a1"], lab["a2"]
    await lab.pod("a1", groups=["server"])
    assert await every(a1.tcp(address, port), a2.tcp(address, port)) == [None, "storage 10.211.1.11"]
    await lab.pod("a1")
    denied = rule("egress", access="deny", protocol="tcp", cidrs=[f"{address}/32"])
    await lab.change_groups(everything=[denied, *GROUPS["everything"]])
    assert await every(a1.tcp(address, port), a1.tcp(a2.address, OPEN)) == [None, "a2 10.211.1.10"]
    await lab.change_groups(everything=GROUPS["everything"])
    assert await a1.tcp(address, port)
    lab.with_service = ""
    await lab.engine.apply([lab.net_a()])
    assert await a1.tcp(address, port) is None
    assert f"{address}/" not in addresses_of_this_machine()  # nobody needs it


async def test_address_of_a_platform_service_that_went_is_added_again(lab: Lab, bench: PodmanBench) -> None:
    address, port = str(bench.platform_service.address), bench.platform_service.port
    subprocess.run(["ip", "address", "delete", f"{address}/32", "dev", "lo"], check=True)
    assert await lab["a1"].tcp(address, port) is None
    await lab.engine.apply([lab.net_a()])
    assert await lab["a1"].tcp(address, port) == "storage 10.211.1.10"


@pytest.mark.parametrize("spoofed", ["address", "mac", "both", "nothing"])
async def test_pod_sends_only_under_its_own_addresses(lab: Lab, spoofed: str) -> None:
    a1, a2 = lab["a1"], lab["a2"]
    source_mac = mac("a3") if spoofed in ("mac", "both") else mac("a1")
    source = "10.211.1.77" if spoofed in ("address", "both") else a1.address
    mark = os.urandom(8)
    with listening(a2) as ear:
        send_frame(a1, frame(source_mac, mac("a2"), source, a2.address, mark))
        assert await hears(ear, mark) is (spoofed == "nothing")


async def test_pod_cannot_take_the_place_of_another(lab: Lab) -> None:
    """Both of a neighbour's addresses are right, but not on this port."""
    a1, a2 = lab["a1"], lab["a2"]
    mark = os.urandom(8)
    with listening(a2) as ear:
        send_frame(a1, frame(mac("a2"), BROADCAST, a2.address, "10.211.1.255", mark))
        send_frame(a1, resolution(mac("a1"), "10.211.1.1", mac("a2"), a2.address) + mark)
        assert not await hears(ear, mark)
        send_frame(a1, resolution(mac("a1"), a1.address, mac("a2"), a2.address) + mark)
        assert await hears(ear, mark)
    # The bridge has not learnt that a2 were where a1 is.
    assert await lab["a3"].tcp(a2.address, OPEN) == "a2 10.211.2.10"


async def test_public_address_leads_to_its_pod_and_moves_while_both_run(lab: Lab) -> None:
    a2, a3, b1 = lab["a2"], lab["a3"], lab["b1"]
    assert await HOST.tcp(PUBLIC, OPEN) is None
    await lab.pod("a1", public=PUBLIC)
    assert await every(HOST.tcp(PUBLIC, OPEN), HOST.udp(PUBLIC, OPEN), HOST.ping(PUBLIC)) == [
        f"a1 {PUBLIC}",
        f"a1 {PUBLIC}",
        True,
    ]
    # From its own network, and from another, which sees nothing but public addresses.
    assert (
        await every(a2.tcp(PUBLIC, OPEN), a3.tcp(PUBLIC, OPEN), b1.tcp(PUBLIC, OPEN)) == [f"a1 {PUBLIC}"] * 3
    )
    with pytest.raises(EngineError, match=r"held by pod a1.*take it"):
        await lab.pod("a2", public=PUBLIC)
    with HOST.conversation(PUBLIC, OPEN) as say:
        assert await say() == f"a1 {PUBLIC}"
        await lab.pod("a1")
        assert await every(HOST.tcp(PUBLIC, OPEN), say()) == [None, None]
        await lab.pod("a2", public=PUBLIC)
        assert await every(HOST.tcp(PUBLIC, OPEN), say()) == [f"a2 {PUBLIC}"] * 2
    assert {pod.phase for name in ("a1", "a2") for pod in (await seen(lab, name)).pods} == {PodPhase.RUNNING}


async def test_public_address_is_seen_from_outside_and_outside_sees_it(lab: Lab) -> None:
    with outside() as world:
        await world.serve(OPEN)
        await lab.pod("a1", public=PUBLIC, groups=["everything"])
        await lab.pod("a2", public=OTHER_PUBLIC, groups=["server"])
        a1, a2 = lab["a1"], lab["a2"]
        assert await every(
            a1.tcp(world.address, OPEN),
            world.tcp(PUBLIC, CLOSED),
            world.ping(PUBLIC),
            world.tcp(OTHER_PUBLIC, OPEN),
            world.tcp(OTHER_PUBLIC, CLOSED),
            world.ping(OTHER_PUBLIC),
        ) == [f"world {PUBLIC}", f"a1 {world.address}", True, f"a2 {world.address}", None, False]
        assert await a2.tcp(world.address, OPEN) is None


async def test_address_that_is_something_else_is_no_public_address(lab: Lab) -> None:
    with pytest.raises(EngineError, match="belongs to .* of this machine itself"):
        await lab.pod("a1", public=own_address())
    with pytest.raises(EngineError, match="lies in 10.211.2.0/24"):
        await lab.pod("a1", public="10.211.2.77")


async def test_names_are_those_of_the_whole_network(lab: Lab, bench: PodmanBench) -> None:
    async def hosts(name: str) -> set[str]:
        result = await lab.engine.exec(Reference("Pod", f"space-{name}", name), ["cat", "/etc/hosts"])
        return set(result.stdout.decode().splitlines()[2:])

    everybody = {f"{PLACES[name][2]} {name} {name}.a.internal" for name in ("a1", "a2", "a3")}
    everybody |= {"10.211.1.1 _gateway", "10.211.2.1 _gateway"}
    everybody.add(f"{bench.platform_service.address} storage.test.internal")
    assert await hosts("a1") == await hosts("a3") == everybody
    assert await hosts("b1") == {"10.211.3.10 b1 b1.b.internal", "10.211.3.1 _gateway"}
    await lab.engine.remove([Reference("Pod", "space-a2", "a2")])
    try:
        assert await hosts("a1") == {line for line in everybody if " a2 " not in line}
    finally:
        await lab.pod("a2")
        await restation(lab, "a2")
    assert await hosts("a3") == everybody


async def test_readiness_and_published_ports_do_not_hang_on_security_groups(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    published = {"ports": [{"containerPort": 8080, "hostPort": port}]}
    probe = {"readinessProbe": {"tcpSocket": {"port": 8080}}}
    try:
        await lab.pod("a2", groups=[], **published, **probe)
        await until(lambda: seen(lab, "a2"), holds=lambda found: found.pods[0].ready)
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1")
        assert await HOST.tcp("10.211.1.11", 8080) is None
    finally:
        await lab.pod("a2")
        await restation(lab, "a2")


async def test_network_in_use_stays(lab: Lab) -> None:
    for reference in (
        Reference("VirtualNetwork", "net-a", "net-a"),
        Reference("Namespace", "net-a", "net-a"),
    ):
        with pytest.raises(EngineError, match=r"in use by pod a\d"):
            await lab.engine.remove([reference])
    with pytest.raises(EngineError, match="no subnet"):
        await lab.engine.apply([lab.network("a", subnet("one", 1))])
    assert await lab["a1"].tcp("10.211.1.11", OPEN) == "a2 10.211.1.10"


async def test_rules_and_addresses_come_back_with_the_engine(lab: Lab, bench: PodmanBench) -> None:
    """After a boot nothing of ours is in the kernel."""
    await lab.pod("a1", public=PUBLIC, groups=["server"])
    layout = lab.engine.layout
    for family in ("inet", "bridge"):
        subprocess.run(["nft", "delete", "table", family, layout.table], check=True)
    subprocess.run(["ip", "address", "delete", f"{PUBLIC}/32", "dev", "lo"], check=True)
    assert await lab["a3"].tcp("10.211.1.10", CLOSED)
    engine = bench.reopened()
    try:
        assert (await engine.observe("space-a1")).pods
        assert await every(lab["a3"].tcp("10.211.1.10", CLOSED), HOST.tcp(PUBLIC, OPEN)) == [
            None,
            f"a1 {PUBLIC}",
        ]
        mark = os.urandom(8)
        with listening(lab["a2"]) as ear:
            send_frame(lab["a1"], frame(mac("a1"), mac("a2"), "10.211.1.77", "10.211.1.11", mark))
            assert not await hears(ear, mark)
    finally:
        await engine.close()


async def test_destroyed_engine_leaves_nothing(tmp_path: Path, busybox_root: Path) -> None:
    engine = PodmanEngine(tmp_path / "home")
    await engine.import_image(busybox_root, "busybox", env={"PATH": "/bin"})
    lab = Lab(engine)
    network = lab.network("c", {**subnet("one", 9, "0.0.0.0/0")})
    manifest = pod("a1", public="203.0.113.209")
    fields = json.loads(manifest["metadata"]["annotations"][INTERFACE_ANNOTATION])
    fields |= {"network": "net-c", "address": "10.211.9.10"}
    manifest["metadata"]["annotations"][INTERFACE_ANNOTATION] = json.dumps(fields)
    await engine.apply(
        [Namespace(name="net-c"), Namespace(name="space-a1"), network, read_manifest(manifest)]
    )
    assert "203.0.113.209" in addresses_of_this_machine()
    await engine.destroy()
    assert traces_of(engine.layout) == set()
    assert "203.0.113.209" not in addresses_of_this_machine()


async def seen(lab: Lab, name: str) -> Any:
    return await lab.engine.observe(f"space-{name}")


async def restation(lab: Lab, name: str) -> None:
    """The pod was made again: its network is another."""
    if name in lab.stations:
        lab[name].close()
    lab.stations[name] = Station(name, PLACES[name][2], await network_of(lab.engine, name))
    await lab[name].serve(OPEN, CLOSED)
