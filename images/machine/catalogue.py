"""Which machine images are built here, and what each says about itself in its `image.json`.

Clients ask for images by the family names of the published cloud. One disk answers to several of them: it
lies in a folder for each, as one file with several names, and its title says what it really is.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import builder

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Image:
    name: str
    """Of its folder, here and below the output; also its family."""
    title: str
    packages: tuple[str, ...]
    root: str
    """Folder of the machine's files inside the Debian that the packages make; empty: that Debian itself."""
    size_mib: int
    families: tuple[str, ...] = ()
    """Other families that it answers to."""

    def version(self) -> str:
        return builder.recipe_version(HERE / self.name, *sorted(HERE.glob("*.py")), HERE / "build")


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
        ),
        root="",
        size_mib=3072,
        families=("ubuntu24.04-driverless", "ubuntu24.04-cuda13.0", "ubuntu22.04-cuda12"),
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
    facts = {"version": version, "architecture": "amd64", "disk": "disk.qcow2"}
    facts |= {"minimum_bytes": image.size_mib * 2**20}
    for family in image.families:
        other = folder.parent / family
        other.mkdir(exist_ok=True)
        _link(folder / "disk.qcow2", other / "disk.qcow2")
        title = f"{image.title}, under the family name {family}"
        _write(other / "image.json", {"name": family, "family": family, "title": title, **facts})
    family = "tiny-test" if image.name == "tiny" else image.name
    _write(folder / "image.json", {"name": image.name, "family": family, "title": image.title, **facts})


def _link(source: Path, target: Path) -> None:
    new = target.with_suffix(".new")
    new.unlink(missing_ok=True)
    os.link(source, new)
    new.replace(target)


def _write(file: Path, facts: dict[str, object]) -> None:
    new = file.with_suffix(".new")
    new.write_text(json.dumps(facts, indent=2) + "\n")
    new.replace(file)
