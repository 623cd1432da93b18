"""Make the cloud-init seed (NoCloud): a small vfat disk with identity, network and user data of the machine.

The YAML files are written as JSON, which is YAML too, so that no character needs escaping by hand.
"""

import json
import subprocess
from collections.abc import Sequence
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from launcher.desired import Interface, Machine
from launcher.network import METADATA_ADDRESS

_ROOM = 256 * 1024  # for the file system's own tables and the small files


class SeedError(Exception):
    """The message says which command failed and why."""


def seed_files(machine: Machine, mtu: int, nameservers: Sequence[IPv4Address]) -> dict[str, str]:
    """Return contents by file name; `nameservers` come after the network's own."""
    metadata = {"instance-id": machine.id, "local-hostname": machine.hostname}
    network = network_config(machine.interface, mtu, nameservers)
    return {
        "meta-data": json.dumps(metadata, indent=2) + "\n",
        "network-config": json.dumps(network, indent=2) + "\n",
        "user-data": machine.user_data or "#cloud-config\n{}\n",
    }


def network_config(interface: Interface, mtu: int, nameservers: Sequence[IPv4Address]) -> dict[str, Any]:
    """Return a static configuration with IPv4 only, so that the guest waits for nothing at its start."""
    routes: list[dict[str, Any]] = [{"to": f"{METADATA_ADDRESS}/32", "scope": "link"}]
    if interface.gateway is not None:
        routes.append({"to": "0.0.0.0/0", "via": str(interface.gateway)})
    names: dict[str, Any] = {"addresses": [METADATA_ADDRESS, *map(str, nameservers)]}
    if interface.domain:
        names["search"] = [interface.domain]
    card: dict[str, Any] = {
        "match": {"macaddress": interface.mac},
        "addresses": [str(interface.address)],
        "routes": routes,
        "nameservers": names,
        "mtu": mtu,
        "dhcp4": False,
        "dhcp6": False,
        "accept-ra": False,
        "link-local": [],
    }
    return {"version": 2, "ethernets": {"eth0": card}}


def write_seed(files: dict[str, str], image: Path) -> None:
    """Make a vfat image labelled CIDATA, readable by root alone, since user data may hold passwords."""
    folder = image.parent / "seed"
    folder.mkdir(mode=0o700, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content)
    size = sum((folder / name).stat().st_size for name in files) + _ROOM
    image.unlink(missing_ok=True)
    image.touch(mode=0o600)
    with image.open("r+b") as file:
        file.truncate(-(-size // 4096) * 4096)
    _run(["mkfs.vfat", "-n", "CIDATA", str(image)])
    _run(["mcopy", "-i", str(image), *(str(folder / name) for name in files), "::"])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SeedError(f"{command[0]} failed while making the seed: {(done.stderr or done.stdout).strip()}")
