"""Measure boot to ssh of the same disk in our launcher's pod and under qemu-system started by hand.

    python bench/machines.py [--image tiny|debian13] [--rounds 3]

Both run the QEMU of the launcher's image with the same accelerator, processor, memory, disk and firmware, in
turns. By hand means: in a chroot of that image, user-mode network with a forwarded port, a seed made
beforehand, no code of ours. The time is measured from the start of the pod, or of QEMU, to the first
command that ssh answers. Aim: 1.15.
"""

import argparse
import asyncio
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "images/launcher/rootfs/usr/local/lib/neocloud")]

from launcher.seed import write_seed  # noqa: E402

from neocloud.engines.podman import PodmanEngine  # noqa: E402
from tests.e2e.images.machines.bench import MachineBench  # noqa: E402

AIM = 1.15
SHAPES = {"tiny": (2**30, 256, 1), "debian13": (6 * 2**30, 1024, 2)}
"""The shape: bytes of the disk, MiB of memory, processors."""
CACHE_MIB = {"tiny": 64, "debian13": 128}
DEADLINE_SECONDS = 300.0
NETWORK = {
    "version": 2,
    "ethernets": {
        "eth0": {
            "match": {"macaddress": "52:54:00:00:00:01"},
            "addresses": ["10.0.2.15/24"],
            "routes": [{"to": "0.0.0.0/0", "via": "10.0.2.2"}],
            "nameservers": {"addresses": ["10.0.2.3"]},
            **{"dhcp4": False, "dhcp6": False, "accept-ra": False, "link-local": []},
        }
    },
}


class ByHand:
    """QEMU in a chroot of the launcher's image."""

    def __init__(self, work: Path, images: Path) -> None:
        self.root, self.images = work / "root", images
        self.root.mkdir()
        archive = images / "launcher" / "image.tar"
        unpack = 'tar -xOf "$0" layer.tar | tar -x -C "$1"'
        subprocess.run(["sh", "-c", unpack, archive, self.root], check=True)

    def boot(self, image: str, user_data: str, key: Path) -> float:
        size, _, _ = SHAPES[image]
        place = self.root / "machine"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        shutil.copy(self.images / "machine" / image / "disk.qcow2", place / "disk.qcow2")
        subprocess.run(["qemu-img", "resize", "-q", place / "disk.qcow2", str(size)], check=True)
        shutil.copy(self.root / "usr/share/OVMF/OVMF_VARS_4M.fd", place / "variables.fd")
        identity = json.dumps({"instance-id": "by-hand", "local-hostname": "worker-1"})
        files = {"meta-data": identity, "network-config": json.dumps(NETWORK), "user-data": user_data}
        write_seed(files, place / "seed.img")
        port = free_port()
        inside = 'mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
        command = ["unshare", "--mount", "sh", "-c", inside, self.root, *plain_command(image, port)]
        begin = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            wait_for_ssh(key, "127.0.0.1", port)
            return time.monotonic() - begin
        finally:
            process.kill()
            process.wait()


def plain_command(image: str, port: int) -> list[str]:
    _, memory, processors = SHAPES[image]
    flash = "if=pflash,format=raw"
    return [
        *("qemu-system-x86_64", "-machine", "q35", "-cpu", "max", "-m", str(memory), "-smp", str(processors)),
        *("-accel", f"tcg,thread=multi,tb-size={CACHE_MIB[image]}", "-nodefaults", "-display", "none"),
        *("-drive", f"{flash},unit=0,readonly=on,file=/usr/share/OVMF/OVMF_CODE_4M.fd"),
        *("-drive", f"{flash},unit=1,file=/machine/variables.fd"),
        *("-drive", "if=virtio,format=qcow2,file=/machine/disk.qcow2"),
        *("-drive", "if=virtio,format=raw,readonly=on,file=/machine/seed.img"),
        *("-netdev", f"user,id=n,hostfwd=tcp:127.0.0.1:{port}-:22"),
        *("-device", "virtio-net-pci,netdev=n,mac=52:54:00:00:00:01,romfile=", "-device", "virtio-rng-pci"),
        *("-serial", "stdio"),
    ]


async def ours(bench: MachineBench, image: str, user_data: str) -> float:
    size, memory, processors = SHAPES[image]
    pod = await bench.prepare(image, size, memory, processors, user_data)
    begin = time.monotonic()
    await bench.engine.apply([pod])
    await asyncio.to_thread(wait_for_ssh, bench.key, "10.219.1.5", 22)
    took = time.monotonic() - begin
    await bench.remove()
    return took


def wait_for_ssh(key: Path, address: str, port: int) -> None:
    options = (
        "BatchMode=yes",
        "ConnectTimeout=2",
        "StrictHostKeyChecking=no",
        "UserKnownHostsFile=/dev/null",
    )
    words = [word for option in options for word in ("-o", option)]
    command = ["ssh", "-q", "-i", str(key), "-p", str(port), *words, f"ubuntu@{address}", "true"]
    end = time.monotonic() + DEADLINE_SECONDS
    while subprocess.run(command, capture_output=True, check=False).returncode:
        if time.monotonic() > end:
            raise SystemExit(f"No ssh on {address}:{port} within {DEADLINE_SECONDS:.0f} s")
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def build(images: Path, image: str) -> None:
    for name, options in (("launcher", []), ("machine", ["--only", image])):
        script = ROOT / "images" / name / "build"
        subprocess.run([script, "--output", images, *options], check=True, stdout=subprocess.DEVNULL)


def make_key(work: Path) -> Path:
    key = work / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    return key


async def measure(image: str, rounds: int, work: Path, images: Path) -> None:
    home = work / "home"
    home.mkdir(mode=0o700)
    (home / "images").mkdir()
    (home / "images" / "machine").symlink_to(images / "machine")
    key = make_key(work)
    user_data = f"#cloud-config\nssh_authorized_keys: ['{key.with_suffix('.pub').read_text().strip()}']\n"
    by_hand, engine = ByHand(work, images), PodmanEngine(home)
    launcher = json.loads((images / "launcher" / "image.json").read_text())
    pods, plain = [], []
    try:
        await engine.load_image(images / "launcher" / launcher["archive"])
        bench = MachineBench(engine, launcher["name"], key)
        await bench.network()
        for number in range(rounds):
            plain.append(by_hand.boot(image, user_data, key))
            pods.append(await ours(bench, image, user_data))
            print(f"  round {number + 1}: by hand {plain[-1]:.1f} s, pod {pods[-1]:.1f} s", flush=True)
    finally:
        await engine.destroy()
        await engine.close()
    hand, pod = statistics.median(plain), statistics.median(pods)
    print(
        f"{image}: boot to ssh by hand {hand:.1f} s, in a pod {pod:.1f} s: ratio {pod / hand:.2f} (aim {AIM})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--image", choices=SHAPES, default="tiny")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=Path, default=ROOT / ".cache" / "images")
    chosen = parser.parse_args()
    images = chosen.images.absolute()
    build(images, chosen.image)
    with tempfile.TemporaryDirectory() as work:
        asyncio.run(measure(chosen.image, chosen.rounds, Path(work), images))


main()
