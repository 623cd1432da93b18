"""Find the processors that a disk can start on, by the boot programs in its EFI system partition.

A disk without such a partition, or without a program there by the name that removable media have (UEFI
specification 2.10, section 3.5.1.1), may start by other means: nothing is known of it then.
"""

from dataclasses import dataclass
from pathlib import Path

SECTOR = 512
HEAD_SECTORS = 34
"""The sectors at the start of a disk that hold the partition table (GPT) with its usual 128 entries."""
MOST_BYTES = 1 << 30
"""The largest partition that is read; 100 to 550 MiB are usual."""
_CHUNK = 1 << 20
_ESP = bytes.fromhex("28732ac11ff8d211ba4b00a0c93ec93b")
_ENTRY_BYTES = 128
_NAME_BYTES = 11
_PROGRAMS = {b"BOOTX64 EFI": "amd64", b"BOOTAA64EFI": "arm64", b"BOOTARM EFI": "arm"}
"""Names as FAT has them in its folders, also where a long name in other letters is beside them."""


@dataclass(frozen=True)
class Stretch:
    """A part of a disk, for `qemu-img dd`."""

    block_bytes: int
    skip_blocks: int
    blocks: int


def efi_partition(head: bytes) -> Stretch | None:
    """Return the EFI system partition of a disk that begins so, at most its first MOST_BYTES."""
    if head[SECTOR : SECTOR + 8] != b"EFI PART":
        return None
    for at in range(2 * SECTOR, len(head) - _ENTRY_BYTES + 1, _ENTRY_BYTES):
        if head[at : at + 16] == _ESP:
            first, last = (
                int.from_bytes(head[at + offset : at + offset + 8], "little") for offset in (32, 40)
            )
            if 0 < first <= last:
                return _stretch(first * SECTOR, min((last - first + 1) * SECTOR, MOST_BYTES))
    return None


def architectures(partition: Path) -> frozenset[str]:
    """Return the architectures whose boot programs the file system in this file names."""
    found: set[str] = set()
    with partition.open("rb") as file:
        end = b""
        while chunk := file.read(_CHUNK):
            text = end + chunk
            found |= {name for program, name in _PROGRAMS.items() if program in text}
            end = chunk[-_NAME_BYTES:]
    return frozenset(found)


def _stretch(start: int, size: int) -> Stretch:
    block = min(start & -start, _CHUNK)
    return Stretch(block, start // block, -(-size // block))
