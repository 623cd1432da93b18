"""Disks that are encrypted as those of machines are."""

import subprocess
from pathlib import Path

UNCLEAR_TIME = "Unable to get accurate CPU usage"
"""qemu-img measures how fast the processor is, and gives up where the kernel says that no time has passed."""
MOST_TRIES = 20


def encrypt_disk(raw: Path, target: Path, key_file: Path) -> None:
    """Make an encrypted qcow2 of a raw disk."""
    luks = "encrypt.format=luks,encrypt.key-secret=k,encrypt.iter-time=10"
    words = ["-f", "raw", "-O", "qcow2", "--object", f"secret,id=k,file={key_file}", "-o", luks]
    said = UNCLEAR_TIME
    for _ in range(MOST_TRIES):
        if UNCLEAR_TIME not in said:
            break
        done = subprocess.run(
            ["qemu-img", "convert", *words, raw, target], capture_output=True, text=True, check=False
        )
        said = done.stderr if done.returncode else ""
    assert not said, said
