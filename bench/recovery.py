"""Measure how long a cloud takes to come back: after its server is killed, and after its host reboots.

    python bench/recovery.py [--kills 10]                            # an emulated cloud: minutes, no root
    python bench/recovery.py --host [--kills 3] [--no-deployment]    # a real cloud; needs root and Podman

Killed: SIGKILL to the server, to its supervisor and then the server that the successor watches, or to both
at once, until an authenticated call is answered by the next server. An emulated cloud is killed
once the next server is prepared, and `--cold` before that. A real one is killed several times in a row while
clients stream from its gateway, and streams that broke are counted.

Reboot: the real cloud runs in namespaces of its own (processes, network, mounts, an empty /run) as on a host.
It has a Slurm cluster with a job, a machine, and a deployment of a tiny model. Then the kernel ends all its
processes at once, and with them its network and mounts. In new namespaces `neo up` runs, as the unit of
`neo up --service` does; each row is the time from its start. The boot of a host's own system is not in it.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the clouds of the tests are those of this bench

from neocloud.control_plane.prepared_server import PREPARED  # noqa: E402
from neocloud.control_plane.server_supervisor import (  # noqa: E402
    GOOD_LIFE_SECONDS,
    server_child,
    successor_child,
    supervisor_child,
)
from neocloud.engines.podman.containers import remove_groups  # noqa: E402
from neocloud.engines.podman.layout import Layout  # noqa: E402
from tests import leftovers  # noqa: E402
from tests.e2e.cloud import Cloud  # noqa: E402
from tests.e2e.cluster import SHARED, Cluster  # noqa: E402
from tests.e2e.inference.served import Served, chat  # noqa: E402
from tests.e2e.test_machines import Machine  # noqa: E402
from tests.e2e.tiny_model import tiny_model  # noqa: E402

IMAGES = ROOT / ".cache" / "images"
NAME = "bench"
"""Name of the cluster, and of the model and its deployment."""
STREAMS = 1
STREAM_TOKENS = 400
"""The model computes on the cores of the server that starts meanwhile: one stream at a time."""
VICTIMS = ("server", "supervisor server", "supervisor+server")
"""In turn, or at once those joined by "+"."""
DEADLINE_SECONDS = 300.0
LOOK_SECONDS = 0.2
BOOT = """
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/groups /run/lock
mount --move /sys/fs/cgroup /run/groups
mount -t sysfs sysfs /sys
mount --move /run/groups /sys/fs/cgroup
ip link set lo up
exec catatonit -- "$@"
"""
"""The state of a host before its first service: /run, its own /sys, loopback, and a process 1 that reaps."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--host", action="store_true", help="a real cloud, whose host reboots")
    parser.add_argument("--victims", choices=VICTIMS, action="append", help="default: all in turn")
    parser.add_argument("--cold", action="store_true", help="kill before another server is prepared")
    parser.add_argument("--no-deployment", action="store_true")
    parser.add_argument("--images", type=Path, default=IMAGES)
    parser.add_argument("--life", choices=("first", "second"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.life == "first":
        first_life(Cloud(given.folder), given.kills, deploys=not given.no_deployment)
        return
    if given.life == "second":
        second_life(Cloud(given.folder), deploys=not given.no_deployment)
        return
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    if given.host:
        reboot(given)
    else:
        kill_emulators(given.kills, given.victims or VICTIMS, is_cold=given.cold)


def kill_emulators(kills: int, victims: Sequence[str], *, is_cold: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="neocloud-bench-") as folder:
        cloud = Cloud.prepare(Path(folder), None)
        try:
            cloud.neo("up", "--emulator")
            for each in victims:
                found = list[float]()
                for _ in range(kills):
                    wait_until_ready(cloud, is_prepared=not is_cold)
                    found.append(seconds_without_api(cloud, each.split()))
                what = "emulator, nothing prepared" if is_cold else "emulator"
                report_kills(what, found, " then ".join(each.split()))
        finally:
            cloud.neo("destroy", "--yes")
            leftovers.forget(cloud.home)


def wait_until_ready(cloud: Cloud, *, is_prepared: bool) -> None:
    """Wait until the supervisor has a successor and, if asked for, the next server has loaded its program."""

    def is_ready() -> bool:
        waits = successor_child(cloud.home).find() is not None and supervisor_child(cloud.home).find()
        return bool(waits) and (not is_prepared or has_loaded(cloud))

    began = time.monotonic()
    until(is_ready, began)
    # A server that lives shorter is started again after a pause.
    until(lambda: time.monotonic() - began > GOOD_LIFE_SECONDS, began)


def has_loaded(cloud: Cloud) -> bool:
    """Return whether a prepared server waits: it blocks in a read of its standard input."""
    server = server_child(cloud.home).find()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            if words[-1] == PREPARED.encode() and str(cloud.home).encode() in words:
                serves = server is not None and int(folder.name) == server.pid
                if not serves and "pipe_read" in (folder / "wchan").read_text():
                    return True
        except OSError:
            continue
    return False


def report_kills(what: str, found: list[float], victims: str = "server") -> None:
    each = ", ".join(f"{seconds:.2f}" for seconds in found)
    median = statistics.median(found)
    print(f"{what}, {victims} killed -> API answers: median {median:.2f} s ({each}; aim 2)", flush=True)


def seconds_without_api(cloud: Cloud, victims: Sequence[str] = ("server",)) -> float:
    """Kill the processes in turn, or at once those joined by "+"; wait for a supervisor between."""
    token = cloud.neo("session", "token").stdout.strip()
    assert answers(cloud, token)
    children = {"server": server_child(cloud.home), "supervisor": supervisor_child(cloud.home)}
    began = time.monotonic()
    for victim in victims:
        processes = [children[name].find() for name in victim.split("+")]
        for process in processes:
            assert process is not None
            process.send(signal.SIGKILL)
        for process in processes:
            assert process is not None and process.wait(60)
        until(lambda: children["supervisor"].find() is not None, began, poll_seconds=0.001)
    return until(lambda: answers(cloud, token), began, poll_seconds=0.01)


def answers(cloud: Cloud, token: str) -> bool:
    """Return whether the API lists projects, over JSON on a new connection."""
    server = cloud.server
    connection = HTTPConnection(server["http"].removeprefix("http://"), timeout=5)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    body = json.dumps({"parent_id": server["tenant_id"]})
    try:
        connection.request("POST", "/nebius.iam.v1.ProjectService/List", body, headers)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def until(holds: Callable[[], object], began: float, *, poll_seconds: float = LOOK_SECONDS) -> float:
    """Return the seconds since `began` when it first holds. Errors mean that it does not yet."""
    last: object = None
    while time.monotonic() - began < DEADLINE_SECONDS:
        try:
            if last := holds():
                return time.monotonic() - began
        except Exception as error:  # noqa: BLE001 - the cloud is not there yet, and says so in many ways
            last = error
        time.sleep(poll_seconds)
    raise SystemExit(f"Not so within {DEADLINE_SECONDS:.0f} s; last seen: {last!r}")


def reboot(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="neocloud-bench-", ignore_cleanup_errors=True) as folder:
        cloud = Cloud.prepare(Path(folder), given.images.absolute())
        if not given.no_deployment:
            tiny_model()
        options = ["--folder", folder, "--kills", str(given.kills)]
        options += ["--no-deployment"] if given.no_deployment else []
        try:
            for life in ("first", "second"):
                run_as_host([sys.executable, __file__, "--life", life, *options])
                remove_groups(Layout.of(cloud.home))
        finally:
            remove_groups(Layout.of(cloud.home))
            shutil.rmtree(cloud.home, ignore_errors=True)  # nothing of it runs or is mounted any more
            leftovers.forget(cloud.home)


def run_as_host(command: list[str]) -> None:
    """Run it in namespaces of its own. When it returns, nothing that it started is left but files."""
    unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    subprocess.run([*unshare, "bash", "-ec", BOOT, "boot", *command], check=True)


def first_life(cloud: Cloud, kills: int, *, deploys: bool) -> None:
    """Fill a cloud, kill its server, and leave it running."""
    cloud.neo("up")
    cluster = Cluster.create(cloud, NAME, "--workers", "2", "--preset", "1vcpu-2gb")
    machine = Machine.create(cloud, NAME)
    (cloud.folder / "machine").write_text(f"{machine.id} {machine.key}")
    machine.run("true")
    if deploys:
        cloud.neo("model", "add", NAME, str(tiny_model()), "--license", "Apache-2.0")
        cloud.neo("deploy", NAME, "--platform", "cpu-local", "--preset", "2vcpu-4gb", seconds=400)
    cluster.wait_until_idle()
    cut = f"echo run >> {SHARED}/cut; until [ $(wc -l < {SHARED}/cut) -ge 2 ]; do sleep 0.2; done"
    cluster.sbatch(cut, "--requeue")
    until(lambda: cluster.try_ssh(f"cat {SHARED}/cut").stdout, time.monotonic())
    with streaming(cloud) if deploys else no_streams() as broken:
        found = [seconds_without_api(cloud) for _ in range(kills)]
    report_kills("real cloud", found)
    print(f"streams of the gateway meanwhile: {', '.join(broken) or 'not_run'}", flush=True)


@contextmanager
def no_streams() -> Iterator[list[str]]:
    yield []


@contextmanager
def streaming(cloud: Cloud) -> Iterator[list[str]]:
    """Stream from the gateway all the time. The list holds how many streams there were when it ends."""
    served, is_over = Served(cloud, NAME, Path()), threading.Event()
    url, token, said = served.gateway, served.token(), list[str]()
    body = {"model": NAME, "stream": True, "max_tokens": STREAM_TOKENS, "ignore_eos": True}
    body["messages"] = [{"role": "user", "content": "How do I block my card?"}]

    def stream_on() -> list[bool]:
        whole = list[bool]()
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(timeout=120, trust_env=False, headers=headers) as client:
            while not is_over.is_set():
                try:
                    whole.append("[DONE]" in client.post(f"{url}/chat/completions", json=body).text)
                except httpx.HTTPError:
                    whole.append(False)
        return whole

    with ThreadPoolExecutor(STREAMS) as pool:
        streams = [pool.submit(stream_on) for _ in range(STREAMS)]
        try:
            yield said
        finally:
            is_over.set()
    ended = [whole for each in streams for whole in each.result()]
    said.append(f"{ended.count(False)} of {len(ended)} broken")


def second_life(cloud: Cloud, *, deploys: bool) -> None:
    """Start the cloud as its unit does, and print when each part serves again."""
    cluster = Cluster(cloud, NAME)
    machine_id, key = (cloud.folder / "machine").read_text().split()
    machine, served = Machine(cloud, machine_id, Path(key), ""), Served(cloud, NAME, Path())
    token = ""

    def ask_model() -> bool:
        nonlocal token
        token = token or served.token()
        return chat(served.gateway, NAME, token)[0] == 200

    parts: dict[str, Callable[[], object]] = {
        "API answers": cloud.clusters,
        "gateway answers": lambda: (
            httpx.get(f"{served.gateway.removesuffix('/v1')}/health", trust_env=False, timeout=5).is_success
        ),
        "machine takes ssh": lambda: machine.ssh("true").returncode == 0,
        "cluster's login node takes ssh": lambda: cluster.try_ssh("true").returncode == 0,
        "the job that was cut off runs again": lambda: cluster.ssh(f"wc -l < {SHARED}/cut") == "2",
        "all Slurm nodes idle": lambda: set(cluster.try_node_states().values()) == {"idle"},
    }
    if deploys:
        parts["model answers"] = ask_model
    began = time.monotonic()
    with ThreadPoolExecutor() as pool:
        is_up = pool.submit(cloud.neo, "up")
        found = {name: pool.submit(until, holds, began) for name, holds in parts.items()}
        is_up.result()
        print(f"reboot: neo up returns after {time.monotonic() - began:.1f} s", flush=True)
        for name, seconds in found.items():
            print(f"reboot: {name} after {seconds.result():.1f} s", flush=True)
    print(f"reboot: everything after {max(each.result() for each in found.values()):.1f} s")


if __name__ == "__main__":
    main()
