"""CMP-01, CMP-09: the seed says who the machine is, in the words of cloud-init."""

import json
import shutil
import subprocess
from ipaddress import IPv4Address

import pytest
from launcher.desired import parse_machine
from launcher.seed import SeedError, network_config, seed_files, write_seed

SERVERS = [IPv4Address("10.0.0.53")]


def test_network_golden(desired):
    assert network_config(parse_machine(desired).interface, 1400, SERVERS) == {
        "version": 2,
        "ethernets": {
            "eth0": {
                "match": {"macaddress": "52:54:00:ab:cd:ef"},
                "addresses": ["10.128.0.5/24"],
                "routes": [
                    {"to": "169.254.169.254/32", "scope": "link"},
                    {"to": "0.0.0.0/0", "via": "10.128.0.1"},
                ],
                "nameservers": {
                    "addresses": ["169.254.169.254", "10.0.0.53"],
                    "search": ["default-network.internal"],
                },
                "mtu": 1400,
                "dhcp4": False,
                "dhcp6": False,
                "accept-ra": False,
                "link-local": [],
            }
        },
    }


def test_a_network_without_a_way_out_has_no_default_route(desired):
    desired["interface"].update(gateway=None, domain="")
    card = network_config(parse_machine(desired).interface, 1500, [])["ethernets"]["eth0"]
    assert card["routes"] == [{"to": "169.254.169.254/32", "scope": "link"}]
    assert card["nameservers"] == {"addresses": ["169.254.169.254"]}


def test_files(desired):
    files = seed_files(parse_machine(desired), 1500, SERVERS)
    assert json.loads(files["meta-data"]) == {
        "instance-id": "computeinstance-e00one",
        "local-hostname": "worker-1",
    }
    assert files["user-data"] == desired["user_data"]
    desired["user_data"] = ""
    assert seed_files(parse_machine(desired), 1500, SERVERS)["user-data"].startswith("#cloud-config\n")


def test_a_hostname_cannot_add_keys(desired):
    desired["hostname"] = 'x", "public-keys": "evil'
    files = seed_files(parse_machine(desired), 1500, SERVERS)
    assert json.loads(files["meta-data"])["local-hostname"] == desired["hostname"]


@pytest.mark.skipif(shutil.which("mcopy") is None, reason="needs mtools")
@pytest.mark.parametrize("size", [0, 10, 300_000])
def test_the_disk_holds_the_files_and_is_private(tmp_path, size):
    image = tmp_path / "seed.img"
    for _ in range(2):  # a container that starts again writes it again
        write_seed({"user-data": "x" * size, "meta-data": "m"}, image)
    read = subprocess.run(["mtype", "-i", image, "::user-data"], capture_output=True, check=True)
    assert read.stdout == b"x" * size
    label = subprocess.run(["mlabel", "-s", "-i", image, "::"], capture_output=True, text=True, check=True)
    assert "CIDATA" in label.stdout
    assert image.stat().st_mode & 0o077 == 0


def test_a_failure_is_told(tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "mkfs.vfat").write_text("#!/bin/sh\necho no room >&2\nexit 1\n")
    (programs / "mkfs.vfat").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/bin")
    with pytest.raises(SeedError, match=r"mkfs.vfat failed .*no room"):
        write_seed({"user-data": ""}, tmp_path / "seed.img")
