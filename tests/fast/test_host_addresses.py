"""The addresses of a cloud that listens on all of them: those that stay, and no tenant's."""

import socket
from collections import namedtuple
from datetime import UTC, datetime
from ipaddress import IPv4Network
from pathlib import Path

import psutil
import pytest

from neocloud.control_plane import tls
from neocloud.control_plane.tls import host_addresses
from neocloud.server import Tls, names_of
from neocloud.settings.settings import Settings

Address = namedtuple("Address", "family address")

ADDRESSES = {
    "lo": ["127.0.0.1", "::1"],
    "eth0": ["192.0.2.7", "10.128.0.7", "2001:db8::7", "2001:db8::99", "fe80::7%eth0"],
    "eth0:1": ["192.0.2.8"],
    "br0": ["192.0.2.20"],
    "docker0": ["172.17.0.1"],
    "veth1": ["172.17.0.9"],
    "laptop": ["10.213.0.1"],
    "nc1": ["10.128.1.1"],
}
TEMPORARY = """\
20010db8000000000000000000000007 02 40 00 00     eth0
20010db8000000000000000000000099 02 40 00 01     eth0
"""


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with network cards, a bridge on one, containers, a cable between namespaces, and a network."""
    for folder in ("eth0/device", "eth1/device", "br0/bridge", "docker0/bridge", "veth1", "laptop", "nc1"):
        (tmp_path / folder).mkdir(parents=True)
    for name, target in {"br0/lower_eth1": "eth1", "docker0/lower_veth1": "veth1"}.items():
        (tmp_path / name).symlink_to(tmp_path / target)
    (tmp_path / "veth1" / "master").symlink_to(tmp_path / "docker0")
    found = {
        name: [Address(socket.AF_INET6 if ":" in each else socket.AF_INET, each) for each in addresses]
        for name, addresses in ADDRESSES.items()
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    return tmp_path


def test_networks_of_containers_and_tenants_and_temporary_addresses_are_left_out(links: Path) -> None:
    temporary = links / "if_inet6"
    temporary.write_text(TEMPORARY)
    found = host_addresses([IPv4Network("10.128.0.0/13")], links=links, ipv6_addresses=temporary)
    assert found == [
        *("10.128.0.7", "10.213.0.1", "192.0.2.7", "192.0.2.8", "192.0.2.20"),
        "2001:db8::7",
    ]


def test_a_kernel_without_ipv6_has_no_temporary_addresses(links: Path) -> None:
    assert "192.0.2.7" in host_addresses(links=links, ipv6_addresses=links / "missing")


def test_the_gateway_is_started_with_the_same_names_when_addresses_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Settings(listen=("all",), domain="cloud.example", gateway_hosts=("models.example",))
    seen = []
    for address in ("192.0.2.7", "192.0.2.8"):
        monkeypatch.setattr(tls, "host_addresses", lambda ranges, address=address: [address])
        assert address in tls.host_names(settings)
        seen.append(tls.gateway_names(settings))
    assert seen[0] == seen[1] and {"cloud.example", "models.example"} <= set(seen[0])


def certificate_of(settings: Settings, monkeypatch: pytest.MonkeyPatch, name: str, address: str) -> Tls:
    """Return what the server starts with on a host of this name and address."""
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    monkeypatch.setattr(tls, "host_addresses", lambda ranges: [address])
    found = tls.tls_of(settings, datetime.now(UTC))
    assert found is not None
    return found


def test_a_host_that_gets_another_address_keeps_its_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=tmp_path, tls_port=0, listen=("all",))
    before = certificate_of(settings, monkeypatch, "cloud", "192.0.2.7")
    after = certificate_of(settings, monkeypatch, "cloud", "192.0.2.8")
    assert after.certificate.authority == before.certificate.authority
    names = names_of(after.certificate.chain_file)
    assert "192.0.2.8" in names and "192.0.2.7" not in names


def test_a_renamed_host_gets_another_authority_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The authority may sign for the names of its time only, so that nobody need fear for others."""
    settings = Settings(home=tmp_path, tls_port=0, listen=("all",))
    before = certificate_of(settings, monkeypatch, "cloud", "192.0.2.7")
    assert not caplog.text
    after = certificate_of(settings, monkeypatch, "rack-7", "192.0.2.7")
    assert "rack-7" in names_of(after.certificate.chain_file)
    assert after.certificate.authority != before.certificate.authority
    assert "clients must trust a new" in caplog.text
    assert (settings.certificate_folder / "ca.pem.old").read_bytes() == before.certificate.authority


def test_addresses_that_the_operator_chose_are_names_of_the_gateway() -> None:
    assert "192.0.2.7" in tls.gateway_names(Settings(listen=("192.0.2.7",)))


def test_the_api_answers_for_the_names_of_a_proxy_on_this_host(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, gateway_hosts=("models.example",))
    assert "models.example" in tls.host_names(settings)
    assert set(tls.gateway_names(settings)) == {"models.example", settings.domain}
