"""Two clouds on one host: a subnet of a namespace stays that of its cloud, even while that cloud is down."""

from collections.abc import Sequence
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, cast

from neocloud.engines.podman.layout import Layout, Objects
from neocloud.engines.podman.libpod import NotFound
from neocloud.engines.podman.network import namespace_networks
from neocloud.engines.podman.network.namespace_networks import NamespaceNetworks
from neocloud.engines.podman.network.public_interface import PublicInterface
from neocloud.engines.podman.network.virtual_networks import VirtualNetworks

UNUSED = cast(Any, None)
POOL = IPv4Network("10.89.0.0/22")


class Podman:
    """The part of Libpod that makes networks: it takes all, as it does where no bridge is up."""

    async def exists(self, path: str) -> bool:
        return False

    async def get(self, path: str) -> Any:
        raise NotFound(path)

    async def post(self, path: str, body: Any) -> None:
        pass


async def subnet_of(home: Path, others: Sequence[Path], monkeypatch: Any) -> IPv4Network:
    layout, podman = Layout.of(home), cast(Any, Podman())
    objects = Objects(layout)
    virtual = VirtualNetworks(layout, podman, objects, UNUSED)
    networks = NamespaceNetworks(
        *(layout, podman, POOL, virtual, objects, (), PublicInterface(layout, "")),
        other_homes=lambda: others,
    )

    async def not_loaded() -> None:
        pass

    monkeypatch.setattr(networks, "sync", not_loaded)
    await networks.ensure("bank")
    found = networks.find("bank")
    assert found is not None
    return found.subnet


async def test_no_cloud_takes_a_subnet_of_another_that_is_down(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(namespace_networks, "host_subnets", lambda: ())  # no routes: all clouds are down
    homes = [tmp_path / str(number) for number in range(4)]
    subnets = [await subnet_of(home, homes[:number], monkeypatch) for number, home in enumerate(homes)]
    assert len(set(subnets)) == 4  # of the four in the pool
