"""Measure the object gateway against peers, as ratios in one run.

    scripts/install-client seaweedfs; apt-get install nginx-light   # without a peer its rows are not_run
    python bench/objects.py [--requests 2000] [--rounds 3] [--keys 100000]

The server runs on one core and the client on another where there are two. Rounds alternate between the
servers; figures are medians. Processor time is that of the whole server, all its threads.

Small: put, get and head of 4 KiB from 16 connections, signed, to SeaweedFS (one process with its defaults: it
answers before the body is on the disk) and to bare uvicorn with the same parser; puts a second to `fdatasync`
one at a time. Large: 64 MiB, put to MD5 of the same bytes and to `dd` with fsync, get to nginx from the same
disk (plain, where ours is decrypted and verified), eight parts, four at a time, to one stream. Lists: a page
of 1,000 keys of a bucket with many keys, to one with 1,000. Then memory and the start to the first answer.
"""

import argparse
import asyncio
import hashlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import uvicorn
from boto3.s3.transfer import TransferConfig

from neocloud.testing.object_control_plane import Account, FakeControlPlane

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.objects.s3.raw import signed_head
from tests.objects.s3.served import Served, serving

ROOT = Path(__file__).parents[1]
SMALL, LARGE, MIB = bytes(4096), 64 << 20, 1 << 20
CONNECTIONS = 16
OWNER = Account("NCAKOWNER0000000", "the-secret-of-the-owner")
WEED = ROOT / ".cache" / "clients" / "seaweedfs" / "bin" / "weed"
NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr crit;
events {{}}
http {{ access_log off; sendfile on; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
server {{ listen 127.0.0.1:{port}; root {folder}; }} }}
"""


@dataclass
class Server:
    process: psutil.Process
    port: int
    start_seconds: float
    registry: str = ""
    bucket: str = ""

    def s3(self) -> Served:
        """Return what signs requests to it. The tests' own server has the same account."""
        return Served(("127.0.0.1", self.port), FakeControlPlane(), None, None, Path(), OWNER)  # type: ignore[arg-type]

    def cpu(self) -> float:
        return sum(self.process.cpu_times()[:2])


async def bare(scope: Any, receive: Any, send: Any) -> None:
    while scope["type"] == "http" and (await receive()).get("more_body"):
        pass
    headers = [(b"content-length", b"%d" % len(SMALL))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": SMALL})


def serve(kind: str) -> None:
    """Serve until the standard input ends; print the port, and the name of a registry."""
    if kind == "bare":
        listener = socket.create_server(("127.0.0.1", 0))
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(
            bare, http="httptools", loop="uvloop", lifespan="off", access_log=False, log_level="error"
        )
        asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))
        return
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as s3:
        registry = s3.call(s3.control_plane.make_registry())
        print(s3.address[1], registry.id.partition("-")[2], flush=True)
        sys.stdin.read()


def free_port() -> int:
    """Return a port that is free, and whose neighbour for gRPC (SeaweedFS adds 10,000) exists."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        if port < 55_000:
            return port
        time.sleep(0)


@contextmanager
def running(command: Sequence[str | Path], port: int = 0) -> Iterator[Server]:
    """Run a server, which prints its port unless it is given, until the block ends."""
    begin, pipe = time.monotonic(), subprocess.PIPE
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=quiet if port else pipe, stderr=quiet) as started:
        process, registry = psutil.Process(started.pid), ""
        try:
            if (os.cpu_count() or 1) > 1:
                process.cpu_affinity([0])
            if not port:
                assert started.stdout is not None
                said = started.stdout.readline().decode().split()
                port, registry = int(said[0]), "".join(said[1:])
            wait_for_answer(port, started)
            yield Server(process, port, time.monotonic() - begin, registry)
        finally:
            if started.stdin is not None:
                started.stdin.close()
            started.terminate()
            started.wait(60)


def wait_for_answer(port: int, started: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        assert started.poll() is None, f"{started.args} ended with {started.returncode}"
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 2) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            if connection.recv(12).startswith(b"HTTP/"):
                return
        time.sleep(0.01)
    raise TimeoutError(f"{started.args} does not answer")


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
def nginx(folder: Path) -> Iterator[Server]:
    port = free_port()
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port))
    with running(["nginx", "-p", folder, "-c", folder / "nginx.conf"], port) as server:
        yield server


def cpu_ms(server: Server, data: bytes, requests: int, is_head: bool) -> tuple[float, float]:
    """Return the milliseconds of processor time of the server for one request, and requests a second."""

    def drive(count: int) -> None:
        with (
            socket.create_connection(("127.0.0.1", server.port)) as connection,
            connection.makefile("rb") as answers,
        ):
            for _ in range(count):
                connection.sendall(data)
                status, length = answers.readline(), 0
                assert b" 200 " in status, status
                while (line := answers.readline()) != b"\r\n":
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                if not is_head:
                    answers.read(length)

    drive(20)
    each = requests // CONNECTIONS
    before, begin = server.cpu(), time.monotonic()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(drive, [each] * CONNECTIONS))
    count = each * CONNECTIONS
    return (server.cpu() - before) / count * 1000, count / (time.monotonic() - begin)


def seconds(call: Callable[[], object]) -> float:
    begin = time.monotonic()
    call()
    return time.monotonic() - begin


def dd(folder: Path) -> None:
    command = ["dd", "if=/dev/zero", f"of={folder}/dd", "bs=1M", f"count={LARGE // MIB}"]
    subprocess.run([*command, "conv=fsync", "status=none"], check=True)
    os.unlink(folder / "dd")


def flushes_a_second(folder: Path) -> float:
    with open(folder / "flushed", "wb", buffering=0) as file:

        def flush() -> None:
            for _ in range(100):
                file.write(SMALL)
                os.fdatasync(file.fileno())

        return 100 / seconds(flush)


class Figures:
    def __init__(self) -> None:
        self._found: dict[str, list[float]] = {}
        self._not_run: list[str] = []

    def add(self, name: str, value: float) -> None:
        self._found.setdefault(name, []).append(value)

    def not_run(self, name: str) -> None:
        self._not_run.append(name)

    def print(self) -> None:
        for name, values in self._found.items():
            print(f"{name:66} {statistics.median(values):10.3f}")
        for name in self._not_run:
            print(f"{name:66} {'not_run':>10}")


def small(figures: Figures, ours: Server, peers: dict[str, Server], requests: int, folder: Path) -> None:
    for method, content in (("PUT", SMALL), ("GET", b""), ("HEAD", b"")):
        length = {"Content-Length": str(len(content))} if content else {}

        def measure(
            server: Server, method: str = method, length: dict[str, str] = length, content: bytes = content
        ) -> tuple[float, float]:
            data = signed_head(server.s3(), method, f"/{server.bucket}/k", length) + content
            return cpu_ms(server, data, requests, method == "HEAD")

        own, rate = measure(ours)
        figures.add(f"{method} 4 KiB: ms of processor time a request", own)
        for name, peer in peers.items():
            figures.add(f"{method} 4 KiB: processor time to {name}", own / measure(peer)[0])
        if method == "PUT":
            figures.add("PUT 4 KiB: puts a second from 16 connections", rate)
            figures.add(
                "PUT 4 KiB: puts a second to one fdatasync at a time", rate / flushes_a_second(folder)
            )


def large(figures: Figures, server: Server, folder: Path, web: Server | None) -> None:
    client, body = server.s3().client(), os.urandom(LARGE)
    put = seconds(lambda: client.put_object(Bucket=server.bucket, Key="large", Body=body))
    link = client.generate_presigned_url("get_object", {"Bucket": server.bucket, "Key": "large"})
    get = seconds(lambda: urllib.request.urlopen(link).read())
    digest = seconds(lambda: hashlib.md5(body, usedforsecurity=False).digest())
    figures.add("put 64 MiB: speed to MD5 alone", digest / put)
    figures.add("put 64 MiB: seconds to dd with fsync", put / seconds(lambda: dd(folder)))
    figures.add("get 64 MiB: MiB/s", LARGE / MIB / get)
    if web is not None:
        (folder / "large").write_bytes(body)
        plain = seconds(lambda: urllib.request.urlopen(f"http://127.0.0.1:{web.port}/large").read())
        figures.add("get 64 MiB: speed to nginx", plain / get)
    parts = TransferConfig(multipart_threshold=8 * MIB, multipart_chunksize=8 * MIB, max_concurrency=4)
    (folder / "parts").write_bytes(body)
    upload = seconds(lambda: client.upload_file(str(folder / "parts"), server.bucket, "parts", Config=parts))
    figures.add("put 64 MiB as 8 parts, 4 at a time: speed to one stream", put / upload)


def fill(server: Server, bucket: str, keys: int) -> None:
    """Put empty objects, from 16 connections."""
    s3 = server.s3()

    def put(first: int) -> None:
        with (
            socket.create_connection(("127.0.0.1", server.port)) as connection,
            connection.makefile("rb") as lines,
        ):
            for number in range(first, keys, CONNECTIONS):
                connection.sendall(signed_head(s3, "PUT", f"/{bucket}/{number:09d}", {"Content-Length": "0"}))
                assert b" 200 " in lines.readline()
                while lines.readline() != b"\r\n":
                    pass

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(put, range(CONNECTIONS)))


def pages(figures: Figures, server: Server, keys: int) -> None:
    client = server.s3().client()
    costs: dict[int, float] = {}
    for count in (1000, keys):
        bucket = f"keys-{count}"
        client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-north1"})
        fill(server, bucket, count)
        before = server.cpu()
        for number in range(50):
            after = f"{count // 50 * number:09d}" if count > 1000 else ""
            client.list_objects_v2(Bucket=bucket, StartAfter=after)
        costs[count] = (server.cpu() - before) / 50 * 1000
    figures.add("page of 1,000 keys: ms of processor time", costs[1000])
    figures.add(f"page of a bucket of {keys} keys: processor time to one of 1,000", costs[keys] / costs[1000])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=2000, help="small requests of each kind in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keys", type=int, default=100_000, help="keys of the large bucket of the lists")
    parser.add_argument("--serve", choices=("bare", "objects"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return
    figures = Figures()
    if (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, set(range(1, os.cpu_count() or 1)))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)  # nginx reads it as another user
        own = [sys.executable, __file__, "--serve"]
        ours = stack.enter_context(running([*own, "objects"]))
        peers = {"bare uvicorn": stack.enter_context(running([*own, "bare"]))}
        if WEED.exists():
            peers["SeaweedFS"] = stack.enter_context(seaweedfs())
        else:
            figures.not_run("all against SeaweedFS: scripts/install-client seaweedfs")
        web = stack.enter_context(nginx(folder)) if shutil.which("nginx") else None
        if web is None:
            figures.not_run("get 64 MiB against nginx: apt-get install nginx-light")
        for name, server in {"ours": ours, **peers}.items():
            server.bucket = "bench"
            if name != "bare uvicorn":
                client = server.s3().client()
                client.create_bucket(
                    Bucket="bench", CreateBucketConfiguration={"LocationConstraint": "eu-north1"}
                )
        for _ in range(given.rounds):
            small(figures, ours, peers, given.requests, folder)
            large(figures, ours, folder, web)
        pages(figures, ours, given.keys)
        figures.add("memory after this, MiB", ours.process.memory_info().rss / MIB)
        if "SeaweedFS" in peers:
            weed = peers["SeaweedFS"]
            figures.add(
                "memory to SeaweedFS, which has fewer keys",
                ours.process.memory_info().rss / weed.process.memory_info().rss,
            )
            figures.add("start to the first answer, to SeaweedFS", ours.start_seconds / weed.start_seconds)
    figures.print()


if __name__ == "__main__":
    main()
