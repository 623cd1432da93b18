"""Measure how exactly QEMU keeps the limits of disks, and what their encryption costs, without a guest.

    python bench/disks.py limits
    python bench/disks.py encryption --folder /var/lib/neocloud

The throttle filter and group are those that the launcher renders; below them is a disk that takes no time
(`null-co`). So this is the block layer's own error: a guest adds its latency and can only be slower. qemu-io
does one operation after another; limits above its own speed are not measured. A tenth of a second's worth
passes at the start without a delay, so short measurements show more than long ones.

The cost of encryption is measured on a file in the folder, through the host's page cache as a machine uses
it: large operations 16 at once, small ones one after another. Plain and encrypted take turns.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median

sys.path[:0] = [str(Path(__file__).parents[1] / "images/launcher/rootfs/usr/local/lib/neocloud")]

from launcher.command_line import block_node, limits_object  # noqa: E402
from launcher.desired import Disk, Limits  # noqa: E402
from launcher.encryption import creation_options, sent_key  # noqa: E402

from neocloud.services.compute.disk_limits import disk_limits  # noqa: E402

GIB, MIB = 2**30, 2**20
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


PATTERNS = (("read", LARGE), ("write", LARGE), ("read", SMALL), ("write", SMALL))
FILE_BYTES, AT_ONCE, ROUNDS = GIB // 4, 16, 5
_KEY = "5eed" * 16


def compare_encryption(folder: Path) -> None:
    disks = {
        name: Disk(name, folder / f"bench-{name}.qcow2", FILE_BYTES, key=_KEY if name == "encrypted" else "")
        for name in ("plain", "encrypted")
    }
    try:
        for disk in disks.values():
            began = time.monotonic()
            options = ["-o", creation_options(disk.id)] if disk.key else []
            qemu_img(disk, "create", "-q", "-f", "qcow2", *options, str(disk.path), str(FILE_BYTES))
            print(f"create, {disk.id}: {time.monotonic() - began:.2f} s", flush=True)
            speed(disk, "write", LARGE)  # so that all of the file is allocated
        for direction, size in PATTERNS:
            found = {name: list[tuple[float, float]]() for name in disks}
            for _ in range(ROUNDS):
                for name, disk in disks.items():
                    found[name].append(speed(disk, direction, size))
            for name in disks:
                speeds, seconds = zip(*found[name], strict=True)
                print(
                    f"{direction} of {size} bytes, {name}: {median(speeds) * size / MIB:.0f} MiB/s, "
                    f"{median(seconds):.2f} s of CPU time for each GiB",
                    flush=True,
                )
    finally:
        for disk in disks.values():
            disk.path.unlink(missing_ok=True)


def speed(disk: Disk, direction: str, size: int) -> tuple[float, float]:
    """Return operations per second, and seconds of CPU time for each GiB, which other work does not change.

    Large operations go side by side, small ones are spread over the file.
    """
    if size == LARGE:
        verbs = [f"aio_{direction} -q {at} {size}" for at in range(0, FILE_BYTES, size)]
        steps = [
            step for at in range(0, len(verbs), AT_ONCE) for step in (*verbs[at : at + AT_ONCE], "aio_flush")
        ]
    else:
        steps = [f"{direction} -q {number * 37 * size % FILE_BYTES} {size}" for number in range(20_000)]
    key = ["--object", json.dumps(sent_key(disk.id, disk.key))] if disk.key else []
    node = f"json:{json.dumps(block_node(disk))}"
    began, used = time.monotonic(), cpu_seconds()
    done = subprocess.run(
        ["qemu-io", *key, node], input="\n".join(steps), capture_output=True, text=True, check=False
    )
    if done.returncode or "rror" in done.stderr:
        sys.exit(done.stderr)
    count = len([step for step in steps if step != "aio_flush"])
    return count / (time.monotonic() - began), (cpu_seconds() - used) * GIB / (count * size)


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def qemu_img(disk: Disk, verb: str, *words: str) -> None:
    key = ["--object", json.dumps(sent_key(disk.id, disk.key))] if disk.key else []
    done = subprocess.run(["qemu-img", verb, *key, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("limits", "encryption"))
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement of a limit")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the measured files lie")
    options = parser.parse_args()
    if options.what == "encryption":
        compare_encryption(options.folder)
    else:
        check_limits(options.seconds)


def check_limits(seconds: float) -> None:
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
