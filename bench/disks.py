"""Measure how exactly QEMU keeps the limits of disks, without a guest: `python bench/disks.py`.

The throttle filter and group are those that the launcher renders; below them is a disk that takes no time
(`null-co`). So this is the block layer's own error: a guest adds its latency and can only be slower. qemu-io
does one operation after another; limits above its own speed are not measured. A tenth of a second's worth
passes at the start without a delay, so short measurements show more than long ones.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "images/launcher/rootfs/usr/local/lib/neocloud")]

from launcher.command_line import block_node, limits_object  # noqa: E402
from launcher.desired import Disk, Limits  # noqa: E402

from neocloud.services.compute.disk_limits import disk_limits  # noqa: E402

GIB = 2**30
BYTES, STRIDE = 64 * GIB, 8 * 2**20
"""Operations do not adjoin, so that none are merged."""
SMALL, LARGE = 4096, 2**20


def measured(limits: Limits | None, size: int, count: int, *, writes: bool) -> float:
    """Return the operations per second of `count` operations of this size, one after another."""
    return count / (elapsed(limits, size, count, writes=writes) - elapsed(limits, size, 0, writes=writes))


def elapsed(limits: Limits | None, size: int, count: int, *, writes: bool) -> float:
    disk = Disk("bench", Path("/nothing"), BYTES, limits=limits)
    backend = {"driver": "null-co", "size": BYTES, "read-zeroes": False}
    node = block_node(disk) | {"file": backend} if limits else backend
    verb = "write -q" if writes else "read -q"
    steps = [f"{verb} {number * STRIDE % BYTES} {size}" for number in range(count)]
    group = ["--object", json.dumps(limits_object(disk.id, limits))] if limits else []
    command = ["qemu-io", *group, f"json:{json.dumps(node)}"]
    began = time.monotonic()
    done = subprocess.run(command, input="\n".join(steps), capture_output=True, text=True, check=False)
    if done.returncode or "rror" in done.stderr:
        sys.exit(done.stderr)
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement (%(default)s)")
    seconds = parser.parse_args().seconds
    for kind, gibibytes in (
        *(("NETWORK_HDD", 256), ("NETWORK_HDD", 512), ("NETWORK_SSD", 10)),
        ("NETWORK_SSD_IO_M3", 93),
    ):
        published = disk_limits(kind, gibibytes * GIB)
        assert published is not None
        limits = Limits(**asdict(published))
        for name, size in (("operations", SMALL), ("bytes", LARGE)):
            for direction in ("read", "write"):
                limit = getattr(published, f"{direction}_{name}")
                expected = limit if name == "operations" else limit / size
                writes = direction == "write"
                if measured(None, size, max(2000, round(expected / 2)), writes=writes) < 1.5 * expected:
                    print(f"{kind} {gibibytes} GiB, {direction} {name}: not_run, {limit} is too fast")
                    continue
                found = measured(limits, size, round(expected * seconds), writes=writes)
                error = found / expected - 1
                print(
                    f"{kind} {gibibytes} GiB, {direction} {name}: {limit} per second, {error:+.1%}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
