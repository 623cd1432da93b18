"""A self-booting disk from a folder and a kernel, without loop mounts.

GPT; an EFI system partition with one unified kernel image at the path that every firmware tries; an ext4 root
file system labelled `root`, last, so that it can grow. Knows nothing of what is in the folder.
"""

import os
import shutil
from pathlib import Path

import builder

_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
MIB = 1024 * 1024
ESP_MIB = 96
START_MIB = 1  # before the first partition
END_MIB = 1  # for the second copy of the partition table
TOOLS = {
    "sfdisk": "fdisk",
    "mkfs.vfat": "dosfstools",
    "mcopy": "mtools",
    "mke2fs": "e2fsprogs",
    "qemu-img": "qemu-utils",
}
LAYOUT = """label: gpt
start={start}MiB, size={esp}MiB, type=uefi, name=esp
start={root}MiB, size={rest}MiB, type=4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709, name=root
"""


def make_disk(root: Path, kernel: Path, size_mib: int, work: Path) -> Path:
    """`work/disk.qcow2` of this size."""
    raw, result = work / "disk.raw", work / "disk.qcow2"
    first = START_MIB + ESP_MIB
    rest = size_mib - first - END_MIB
    with raw.open("wb") as file:
        file.truncate(size_mib * MIB)
    layout = work / "layout"
    layout.write_text(LAYOUT.format(start=START_MIB, esp=ESP_MIB, root=first, rest=rest))
    builder.run(["sh", "-c", 'sfdisk --quiet "$0" <"$1"', raw, layout])
    _write_esp(kernel, raw, work)
    options = f"offset={first * MIB},lazy_itable_init=0,lazy_journal_init=0"
    builder.run(
        ["mke2fs", "-q", "-t", "ext4", "-L", "root", "-d", root, "-E", options, raw, f"{rest * 1024}k"]
    )
    compress = ["-c", "-o", "compression_type=zstd"]
    builder.run(["qemu-img", "convert", "-O", "qcow2", *compress, raw, result])
    raw.unlink()
    return result


def _write_esp(kernel: Path, raw: Path, work: Path) -> None:
    esp = work / "esp"
    with esp.open("wb") as file:
        file.truncate(ESP_MIB * MIB)
    builder.run(["mkfs.vfat", "-F", "32", "-n", "ESP", esp])
    builder.run(["mmd", "-i", esp, "::EFI", "::EFI/BOOT"])
    builder.run(["mcopy", "-i", esp, kernel, "::EFI/BOOT/BOOTX64.EFI"])
    builder.run(["dd", f"if={esp}", f"of={raw}", "bs=1M", f"seek={START_MIB}", "conv=notrunc,sparse"])
    esp.unlink()


def require_tools() -> None:
    """Before minutes of work."""
    missing = sorted({package for tool, package in TOOLS.items() if shutil.which(tool, path=_PATH) is None})
    if missing:
        raise builder.BuildError(f"Programs are missing. Install them: apt-get install {' '.join(missing)}")
