"""The servers that bench/objects.py measures: the object gateway, and the peers that are on the machine."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from object_gateway import OWNER

from neocloud.testing.object_control_plane import Account, FakeControlPlane

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fast.object_gateway.s3.served import Served

ROOT = Path(__file__).parents[1]
WEED = ROOT / ".cache" / "clients" / "seaweedfs" / "bin" / "weed"
SCRIPTS = Path(__file__).parent / "peers"
START_SECONDS = 180
NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr crit;
events {{}}
http {{ access_log off; sendfile on; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
server {{ listen 127.0.0.1:{port}; root {folder}; }} }}
"""
IN_ROOT = """
mount -t proc proc "$0/proc"; mount --rbind /dev "$0/dev"; mount --bind "$1" "$0/srv"
exec chroot "$0" bash /srv/run.sh /srv "$2"
"""
"""Runs in a mount namespace of its own, with which the mounts go."""


@dataclass
class Server:
    processes: list[psutil.Process]
    """Their children count, too."""
    port: int
    start_seconds: float = 0.0
    registry: str = ""
    bucket: str = "bench"
    account: Account = field(default_factory=lambda: OWNER)

    def s3(self) -> Served:
        """Return what signs requests to it."""
        return Served(("127.0.0.1", self.port), FakeControlPlane(), None, None, Path(), self.account)  # type: ignore[arg-type]

    def all(self) -> list[psutil.Process]:
        return [each for top in self.processes for each in (top, *top.children(recursive=True))]

    def cpu(self) -> float:
        """Return the seconds of processor time of all its processes until now."""
        return sum(sum(each.cpu_times()[:2]) for each in self.all())

    def memory(self) -> float:
        """Return bytes; what processes share counts once for each."""
        return sum(each.memory_info().rss for each in self.all())

    def use_cores(self, cores: Sequence[int]) -> None:
        for process in self.all():
            for thread in process.threads():
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(thread.id, cores)


def free_port() -> int:
    """Return a port that is free, and whose neighbour for gRPC (SeaweedFS adds 10,000) exists."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        if port < 55_000:
            return port
        time.sleep(0)


@contextmanager
def running(
    command: Sequence[str | Path], port: int = 0, environment: dict[str, str] | None = None
) -> Iterator[Server]:
    """Run a server on the first core, which prints its port unless it is given, until the block ends."""
    begin, pipe = time.monotonic(), subprocess.PIPE
    quiet = subprocess.DEVNULL
    given = {**os.environ, **(environment or {})}
    with subprocess.Popen(command, stdout=quiet if port else pipe, stderr=quiet, env=given) as started:
        process, registry = psutil.Process(started.pid), ""
        try:
            if (os.cpu_count() or 1) > 1:
                process.cpu_affinity([0])
            if not port:
                assert started.stdout is not None
                said = started.stdout.readline().decode().split()
                port, registry = int(said[0]), "".join(said[1:])
            wait_for_answer(port, started)
            yield Server([process], port, time.monotonic() - begin, registry)
        finally:
            started.terminate()
            started.wait(60)


def wait_for_answer(port: int, started: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        assert started.poll() is None, f"{started.args} ended with {started.returncode}"
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 2) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            if connection.recv(12).startswith(b"HTTP/"):
                return
        time.sleep(0.01)
    raise TimeoutError(f"{started.args} does not answer")


@contextmanager
def gateway(checkout: Path = ROOT) -> Iterator[Server]:
    """Run the object gateway of a checkout of this project, which has this bench."""
    command = [sys.executable, checkout / "bench" / "object_gateway.py"]
    with running(command, environment={"PYTHONPATH": str(checkout / "src")}) as server:
        yield server


@contextmanager
def seaweedfs() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        key = {"accessKey": OWNER.aws_access_key_id, "secretKey": OWNER.secret}
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        keys = {"identities": [{"name": "owner", "credentials": [key], "actions": actions}]}
        Path(folder, "keys.json").write_text(json.dumps(keys))
        ports = {name: free_port() for name in ("s3", "filer", "master", "volume")}
        command = [
            str(WEED),
            "server",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-dir={folder}",
            "-master.telemetry=false",
            "-master.volumeSizeLimitMB=1000",
            "-volume.max=20",
            "-s3",
            f"-s3.config={folder}/keys.json",
            *(f"-{name}.port={port}" for name, port in ports.items()),
        ]
        with running(command, ports["s3"]) as server:
            yield server


@contextmanager
def packaged(name: str, root: Path) -> Iterator[Server]:
    """Run a peer from Debian's packages: peers/NAME.sh, in a folder that they were installed into."""
    account = Account("bench:owner" if name == "swift" else OWNER.aws_access_key_id, OWNER.secret)
    keys = {"ACCESS_KEY": account.aws_access_key_id, "SECRET_KEY": account.secret}
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        shutil.copy(SCRIPTS / f"{name}.sh", Path(folder, "run.sh"))
        own_mounts = ["unshare", "--mount", "--propagation", "private"]
        command = [*own_mounts, "bash", "-euc", IN_ROOT, root, folder, str(port)]
        with running(command, port, keys) as server:
            server.account = account
            yield server


def given_peer(text: str) -> tuple[str, Server]:
    """Return a peer that runs already, of NAME=PORT,PID[,PID ...]; its key is in the environment."""
    name, _, where = text.partition("=")
    port, *processes = (int(each) for each in where.split(","))
    account = Account(os.environ["PEER_ACCESS_KEY"], os.environ["PEER_SECRET_KEY"])
    return name, Server([psutil.Process(each) for each in processes], port, account=account)


@contextmanager
def nginx(folder: Path) -> Iterator[Server]:
    port = free_port()
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port))
    with running(["nginx", "-p", folder, "-c", folder / "nginx.conf"], port) as server:
        yield server
