"""The catalogue of machine images that are built here, with the content of their `image.json`.

Clients ask for images by the family names of the published cloud. One disk answers to several of them: it
lies in a folder for each, as one file with several names, and its title says what it really is. A family
whose name promises CUDA is not served by an image without it.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import builder

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Image:
    name: str
    """Name of its folder, here and below the output; also its family."""
    title: str
    packages: tuple[str, ...]
    root: str
    """Folder of the machine's files inside the Debian that the packages make; empty: that Debian itself."""
    size_mib: int
    families: tuple[str, ...] = ()
    """Other families that it answers to."""

    def version(self) -> str:
        return builder.recipe_version(HERE / self.name, *sorted(HERE.glob("*.py")), HERE / "build")


FORMER_FAMILIES = ("ubuntu24.04-cuda13.0", "ubuntu22.04-cuda12")
"""Families under which earlier releases offered an image that is not what they promise."""
_KERNEL = ("linux-image-cloud-amd64", "systemd-ukify", "systemd-boot-efi")
IMAGES = (
    Image(
        name="debian13",
        title="Debian 13 (trixie), without GPU driver",
        packages=(
            *_KERNEL,
            *("systemd-sysv", "dbus", "udev", "systemd-timesyncd", "libpam-systemd", "initramfs-tools"),
            *("cloud-init", "netplan.io", "cloud-guest-utils", "qemu-guest-agent", "openssh-server", "sudo"),
            *(
                "iproute2",
                "iputils-ping",
                "procps",
                "less",
                "nano",
                "rsync",
                "ca-certificates",
                "curl",
                "wget",
            ),
            *(
                "python3",
                "python3-venv",
                "bash-completion",
                "e2fsprogs",
                "dosfstools",
                "fdisk",
                "zstd",
                "libnss-myhostname",
            ),
            *("jq", "pciutils", "dmidecode", "linux-perf"),  # to look at a machine and at what runs in it
            *("gpg", "console-setup"),  # cloud-init's `apt` and `keyboard` need them
        ),
        root="",
        size_mib=3072,
        families=("ubuntu24.04-driverless",),
    ),
    Image(
        name="tiny",
        title="Tiny Linux for tests: busybox and ssh",
        packages=(*_KERNEL, "busybox-static", "dropbear-bin"),
        root="machine",
        size_mib=1024,
    ),
)


def publish(image: Image, folder: Path, version: str) -> None:
    """The image's own description last: it is what makes a build count."""
    withdraw(folder.parent)
    facts = {"version": version, "architecture": "amd64", "disk": "disk.qcow2"}
    facts |= {"minimum_bytes": image.size_mib * 2**20}
    for family in image.families:
        other = folder.parent / family
        other.mkdir(exist_ok=True)
        _link(folder / "disk.qcow2", other / "disk.qcow2")
        title = f"{image.title}{_title(family)}"
        _write(other / "image.json", {"name": family, "family": family, "title": title, **facts})
    family = "tiny-test" if image.name == "tiny" else image.name
    _write(folder / "image.json", {"name": image.name, "family": family, "title": image.title, **facts})


def withdraw(folder: Path) -> None:
    """Remove the former families, but not an image that somebody has imported under such a name."""
    for family in FORMER_FAMILIES:
        described = folder / family / "image.json"
        if described.exists() and _title(family) in json.loads(described.read_text()).get("title", ""):
            shutil.rmtree(described.parent)


def _title(family: str) -> str:
    return f", under the family name {family}"


def _link(source: Path, target: Path) -> None:
    new = target.with_suffix(".new")
    new.unlink(missing_ok=True)
    os.link(source, new)
    new.replace(target)


def _write(file: Path, facts: dict[str, object]) -> None:
    new = file.with_suffix(".new")
    new.write_text(json.dumps(facts, indent=2) + "\n")
    new.replace(file)
