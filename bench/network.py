"""Measure speed and latency between two pods on a subnet, compared with a bare veth pair.

In one run on one machine: two network namespaces joined by nothing but a veth pair; two pods on one subnet,
with security groups on both and every card checked; two pods on two subnets of a network, which is routed.
Rounds alternate, so that other load on the machine affects all alike; compare the ratios.
Throughput is one TCP stream of iperf3; latency one byte back and forth over TCP, between the same namespaces.

    python bench/network.py [--seconds 3] [--rounds 5]
"""

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from neocloud.engines.base import Reference
from neocloud.engines.manifest import Manifest, Namespace, read_manifest
from neocloud.engines.manifest.pod import INTERFACE_ANNOTATION
from neocloud.engines.podman import PodmanEngine
from neocloud.engines.podman.libpod import Libpod

BUSYBOX = Path("/bin/busybox")
PORT = 7070
RULES = [
    {"direction": "ingress", "access": "deny", "protocol": "any", "cidrs": ["192.0.2.0/24"]},
    {"direction": "ingress", "access": "allow", "protocol": "udp", "ports": [53], "cidrs": ["0.0.0.0/0"]},
    {"direction": "ingress", "access": "allow", "protocol": "tcp", "groups": ["bench"]},
    {"direction": "egress", "access": "allow", "protocol": "any", "cidrs": ["0.0.0.0/0"]},
]
PODS = {"one": ("near", "10.213.1.10"), "two": ("near", "10.213.1.11"), "three": ("far", "10.213.2.10")}
CLONE_NEWNET = 0x40000000


@dataclass
class Way:
    """A way from one network namespace to an address in another."""

    name: str
    client: str
    server: str
    address: str
    gigabits: list[float] = field(default_factory=list)
    microseconds: list[float] = field(default_factory=list)


async def measure(seconds: float, rounds: int) -> list[Way]:
    with tempfile.TemporaryDirectory(prefix="ncbench") as folder, bare_pair() as (left, right):
        engine = PodmanEngine(Path(folder) / "home")
        try:
            await make_pods(engine, Path(folder) / "root")
            where = {name: await network_of(engine, name) for name in PODS}
            ways = [
                Way("bare veth pair", left, right, "10.214.0.2"),
                Way("pods on one subnet", where["one"], where["two"], PODS["two"][1]),
                Way("pods on two subnets", where["one"], where["three"], PODS["three"][1]),
            ]
            for number in range(rounds):
                for way in ways if number % 2 else reversed(ways):
                    way.gigabits.append(throughput(way, seconds))
                    way.microseconds.append(latency(way, seconds / 3))
            return ways
        finally:
            await engine.destroy()


async def make_pods(engine: PodmanEngine, root: Path) -> None:
    for name in ("bin", "etc", "dev", "proc", "sys", "tmp", "run"):
        (root / name).mkdir(parents=True)
    shutil.copy(BUSYBOX, root / "bin" / "busybox")
    (root / "bin" / "sleep").symlink_to("busybox")
    await engine.import_image(root, "busybox", env={"PATH": "/bin"})
    await engine.apply(
        [Namespace(name="lab"), network(), *(pod(name, *place) for name, place in PODS.items())]
    )


def network() -> Manifest:
    subnets = [
        {"name": name, "cidrs": [f"10.213.{number}.0/24"], "gateway": f"10.213.{number}.1"}
        for number, name in ((1, "near"), (2, "far"))
    ]
    spec = {"subnets": subnets, "securityGroups": [{"name": "bench", "rules": RULES}]}
    metadata = {"name": "lab", "namespace": "lab"}
    return read_manifest({"kind": "VirtualNetwork", "metadata": metadata, "spec": spec})


def pod(name: str, subnet: str, address: str) -> Manifest:
    interface = {
        "network": "lab",
        "subnet": subnet,
        "address": address,
        "mac": f"52:54:00:00:00:{list(PODS).index(name):02x}",
        "securityGroups": ["bench"],
    }
    metadata = {
        "name": name,
        "namespace": "lab",
        "annotations": {INTERFACE_ANNOTATION: json.dumps(interface)},
    }
    container = {"name": "main", "image": "busybox", "command": ["sleep", "3600"]}
    return read_manifest({"kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}})


async def network_of(engine: PodmanEngine, name: str) -> str:
    reference = Reference("Pod", "lab", name)
    libpod = Libpod(engine.layout.socket, lambda: asyncio.sleep(0))
    try:
        found = await libpod.get(f"/containers/{reference.namespace}.{name}.main/json")
        return f"/proc/{found['State']['Pid']}/ns/net"
    finally:
        await libpod.close()


@contextlib.contextmanager
def bare_pair() -> Iterator[tuple[str, str]]:
    names = [f"ncbench-{os.getpid()}-{side}" for side in ("left", "right")]
    made = []
    try:
        for name in names:
            run("ip", "netns", "add", name)
            made.append(name)
        run("ip", "-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", names[1])
        for number, name in enumerate(names, start=1):
            run("ip", "-n", name, "address", "add", f"10.214.0.{number}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
        yield f"/run/netns/{names[0]}", f"/run/netns/{names[1]}"
    finally:
        for name in made:
            run("ip", "netns", "delete", name)


def throughput(way: Way, seconds: float) -> float:
    """Return gigabits per second, as the receiver counts them."""
    server = subprocess.Popen(
        ["nsenter", f"--net={way.server}", "iperf3", "--server", "--one-off", "--port", str(PORT), "--json"],
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_for(way)
        client = ["nsenter", f"--net={way.client}", "iperf3", "--client", way.address, "--port", str(PORT)]
        done = run(*client, "--time", str(seconds), "--omit", "0.5", "--json")
        return json.loads(done)["end"]["sum_received"]["bits_per_second"] / 1e9
    finally:
        server.terminate()
        server.wait()


def wait_for(way: Way) -> None:
    """Wait until the server listens, without a connection: it accepts only one client."""
    deadline = time.monotonic() + 5
    while not listens(way.server):
        if time.monotonic() > deadline:
            sys.exit(f"iperf3 does not listen for {way.name}.")
        time.sleep(0.02)


def listens(network_path: str) -> bool:
    return bool(run("nsenter", f"--net={network_path}", "ss", "-Hltn", f"sport = :{PORT}").strip())


def latency(way: Way, seconds: float) -> float:
    """Return the median round trip in microseconds."""
    server = inside(way.server, lambda: socket.create_server(("0.0.0.0", PORT + 1)))
    client = inside(way.client, lambda: socket.create_connection((way.address, PORT + 1), timeout=5))
    peer, _ = server.accept()
    for end in (client, peer):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def echo() -> None:
        while data := peer.recv(1):
            peer.sendall(data)

    thread = threading.Thread(target=echo)
    thread.start()
    times: list[float] = []
    end_at = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end_at:
        client.sendall(b"x")
        client.recv(1)
        times.append(time.perf_counter() - begin)
    client.close()
    thread.join()
    peer.close()
    server.close()
    return statistics.median(times) * 1e6


def inside(network_path: str, make: Callable[[], socket.socket]) -> socket.socket:
    """Return a socket made in another network namespace, by a thread that enters it."""
    made: list[socket.socket] = []

    def job() -> None:
        with open(network_path) as handle:
            if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        made.append(make())

    thread = threading.Thread(target=job)
    thread.start()
    thread.join()
    return made[0]


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed: {done.stderr or done.stdout}")
    return done.stdout


def report(ways: list[Way]) -> None:
    bare = ways[0]
    print(f"{'':22}{'Gbit/s':>9}{'of bare':>9}{'round trip us':>15}{'of bare':>9}")
    for way in ways:
        speed, wait = statistics.median(way.gigabits), statistics.median(way.microseconds)
        of_speed = statistics.median(w / b for w, b in zip(way.gigabits, bare.gigabits, strict=True))
        of_wait = statistics.median(w / b for w, b in zip(way.microseconds, bare.microseconds, strict=True))
        print(f"{way.name:22}{speed:9.2f}{of_speed:9.2f}{wait:15.1f}{of_wait:9.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for program in ("iperf3", "nsenter", "ss"):
        if not shutil.which(program):
            sys.exit(f"{program} is needed: apt-get install iperf3 iproute2 util-linux")
    report(asyncio.run(measure(options.seconds, options.rounds)))


if __name__ == "__main__":
    main()
