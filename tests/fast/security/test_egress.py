"""Destinations of tenants' pods and machines outside of the cloud, tested with packets.

The world is a network behind this machine that has the operator's, cloud providers' and public addresses.
"""

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from neocloud.control_plane.settings_file import parse_arguments, write_settings
from neocloud.core.destinations import METADATA_ADDRESSES
from neocloud.engines.manifest import Manifest, Namespace, NetworkPolicy, read_manifest
from neocloud.engines.podman import PodmanEngine
from neocloud.engines.podman.network import namespace_networks
from neocloud.engines.podman.network.firewall import Egress, render_egress
from neocloud.services.inference.render import foundation
from neocloud.settings.settings import Settings
from tests.fast.engines.podman.conftest import busybox_root as busybox_root
from tests.fast.engines.podman.conftest import traces_of
from tests.fast.engines.podman.test_packets import every, network_of
from tests.fast.engines.podman.wire import Station, World, outside

case = pytest.mark.asyncio(loop_scope="module")

DNS, OTHER = 53, 7000
RESOLVER, PUBLIC = "10.77.0.53", "1.2.3.4"
METADATA = [str(address) for address in METADATA_ADDRESSES if address.version == 4]
PRIVATE = ["10.77.0.1", "172.16.7.1", "192.168.77.1", "100.64.7.1", "198.18.7.1", *METADATA]
OPENED = ["10.78.0.1", "192.168.78.1", "100.100.7.1"]
SEALED = "inferencedeployment-e00one"
VPC = "net-e"


def pod(namespace: str, **metadata: Any) -> Manifest:
    container = {"name": "main", "image": "busybox", "command": ["sleep", "3600"]}
    return read_manifest(
        {
            "kind": "Pod",
            "metadata": {"name": namespace, "namespace": namespace, **metadata},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
        }
    )


def on_subnet() -> Manifest:
    interface = (
        '{"network": "net-e", "subnet": "one", "address": "10.212.1.10", "mac": "52:54:00:00:00:01",'
        ' "securityGroups": ["all"]}'
    )
    return pod("space-machine", annotations={"neocloud.dev/interface": interface})


def network() -> Manifest:
    rules = [{"direction": way, "access": "allow", "protocol": "any"} for way in ("ingress", "egress")]
    subnet = {
        "name": "one",
        "cidrs": ["10.212.1.0/24"],
        "gateway": "10.212.1.1",
        "routes": [{"destination": "0.0.0.0/0", "nextHop": "egress"}],
    }
    spec = {"subnets": [subnet], "securityGroups": [{"name": "all", "rules": rules}], "domain": "e.internal"}
    metadata = {"name": VPC, "namespace": VPC}
    return read_manifest({"kind": "VirtualNetwork", "metadata": metadata, "spec": spec})


@dataclass
class Lab:
    engine: PodmanEngine
    world: World
    container: Station
    machine: Station
    sealed: Station


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lab(tmp_path_factory: pytest.TempPathFactory, busybox_root: Path) -> AsyncIterator[Lab]:
    opened = [IPv4Network("10.78.0.0/16"), IPv4Network("192.168.78.1/32")]
    opened.append(IPv4Network("100.100.0.0/16"))  # a metadata service lies in it
    engine = PodmanEngine(tmp_path_factory.mktemp("egress"), opened_ranges=opened)
    with pytest.MonkeyPatch.context() as patch, outside(RESOLVER, PUBLIC, *PRIVATE, *OPENED) as world:
        patch.setattr(namespace_networks, "resolver_configuration", lambda: (f"nameserver {RESOLVER}\n", []))
        try:
            for address in (RESOLVER, PUBLIC, *PRIVATE, *OPENED):
                await world.serve(DNS, OTHER, address=address)
            await engine.import_image(busybox_root, "busybox", env={"PATH": "/bin"})
            await engine.apply(
                [
                    *(Namespace(name=name) for name in (VPC, "space-container", "space-machine")),
                    *(network(), pod("space-container"), on_subnet()),
                    *foundation(SEALED, "bank", b"key"),
                    pod(SEALED),
                ]
            )
            stations = [await station(engine, name) for name in ("space-container", "space-machine", SEALED)]
            yield Lab(engine, world, *stations)
        finally:
            await engine.destroy()
            await engine.close()
    assert traces_of(engine.layout) == set()


async def station(engine: PodmanEngine, name: str) -> Station:
    found = (await engine.observe(name)).pod(name)
    assert found and found.ip
    return Station(name, found.ip, await network_of(engine, name, name))


async def answers(addresses: Sequence[str], *ports: int, senders: Sequence[Station]) -> set[str | None]:
    """Return the answers to the senders by TCP and UDP, asking everywhere at the same time."""
    asked = list(product(senders, addresses, ports))
    heard = await every(
        *(sender.tcp(address, port) for sender, address, port in asked),
        *(sender.udp(address, port) for sender, address, port in asked),
    )
    return set(heard) - {None}


@case
async def test_this_machine_reaches_all_of_them(lab: Lab) -> None:
    """Closed destinations are closed by the rules for pods, not by the way there."""
    for address in (RESOLVER, PUBLIC, *PRIVATE, *OPENED):
        host = Station("host", "")
        assert await host.tcp(address, OTHER) and await host.udp(address, DNS)


@case
async def test_public_addresses_are_reached(lab: Lab) -> None:
    for sender in (lab.container, lab.machine):
        assert await sender.tcp(PUBLIC, OTHER) == f"world {lab.world.host}"
        assert await sender.udp(PUBLIC, OTHER) == f"world {lab.world.host}"


@case
@pytest.mark.parametrize("address", PRIVATE)
async def test_private_ranges_and_metadata_services_are_closed(lab: Lab, address: str) -> None:
    both = (lab.container, lab.machine)
    assert await answers([address], OTHER, DNS, senders=both) == set()
    assert await every(*(sender.ping(address) for sender in both)) == [False, False]


@case
@pytest.mark.parametrize("address", OPENED)
async def test_what_the_operator_opens_is_reached(lab: Lab, address: str) -> None:
    for sender in (lab.container, lab.machine, lab.sealed):
        assert await sender.tcp(address, OTHER) == f"world {lab.world.host}"


@case
async def test_the_name_server_answers_names_and_nothing_else(lab: Lab) -> None:
    for sender in (lab.container, lab.machine):
        assert await sender.udp(RESOLVER, DNS) and await sender.tcp(RESOLVER, DNS)
        assert await answers([RESOLVER], OTHER, senders=[sender]) == set()
        assert not await sender.ping(RESOLVER)


@case
async def test_serving_engines_begin_no_connection(lab: Lab) -> None:
    assert await answers([PUBLIC, RESOLVER, "10.77.0.1"], OTHER, DNS, senders=[lab.sealed]) == set()


@case
async def test_serving_engines_still_answer_this_machine(lab: Lab) -> None:
    await lab.sealed.serve(OTHER)
    try:
        assert await Station("host", "").tcp(lab.sealed.address, OTHER)
    finally:
        lab.sealed.close()


@case
async def test_a_policy_that_goes_opens_the_way_again(lab: Lab) -> None:
    policy = next(each for each in foundation(SEALED, "bank", b"key") if isinstance(each, NetworkPolicy))
    await lab.engine.remove([policy.reference])
    assert await lab.sealed.tcp(PUBLIC, OTHER) == f"world {lab.world.host}"
    await lab.engine.apply([policy])
    assert await lab.sealed.tcp(PUBLIC, OTHER) is None


@case
async def test_status_says_what_is_open(lab: Lab) -> None:
    capabilities = await lab.engine.capabilities()
    assert (
        capabilities.details["private ranges open to workloads"]
        == "10.78.0.0/16, 192.168.78.1/32, 100.100.0.0/16"
    )


def test_a_metadata_service_is_opened_by_its_own_address_alone() -> None:
    wider = "\n".join(render_egress(Egress(opened=(IPv4Network("100.100.0.0/16"),))))
    itself = "\n".join(render_egress(Egress(opened=(IPv4Network("100.100.100.200/32"),))))
    assert "100.100.100.200" in wider
    assert re.search(r"set metadata {[^}]*100\.100\.100\.200", wider)
    assert not re.search(r"set metadata {[^}]*100\.100\.100\.200", itself)


def test_ranges_that_neo_up_was_given_reach_the_engine(tmp_path: Path) -> None:
    opened = (IPv4Network("10.78.0.0/16"), IPv4Network("192.168.78.1/32"))
    write_settings(Settings(home=tmp_path, opened_ranges=opened))
    _, settings = parse_arguments(["--home", str(tmp_path)])
    assert settings.opened_ranges == opened
    assert Settings().opened_ranges == ()
