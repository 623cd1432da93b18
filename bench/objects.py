"""Measure the object gateway against peers, as ratios in one run.

    scripts/install-client seaweedfs; apt-get install nginx-light   # without a peer its rows are not_run
    mmdebstrap --include=ceph-mon,ceph-mgr,ceph-osd,radosgw,swift-proxy,swift-account,swift-container,\
swift-object,memcached trixie FOLDER
    python bench/objects.py [--debian FOLDER] [--peer NAME=PORT,PID] [--checkout NAME=FOLDER]
        [--requests 2000] [--rounds 3] [--keys 100000]

The server runs on one core and the client on another where there are two. Rounds alternate between the
servers; figures are medians. Processor time is that of the whole server, all its threads and processes.

Peers: SeaweedFS (one process with its defaults: it answers before the body is on the disk); Ceph's radosgw
with one mon, mgr and OSD, and Swift with its S3 interface, from Debian's packages in a folder (`--debian`,
as root) by the scripts in bench/peers; any other that runs already (`--peer`: its port and the processes
that serve it, with PEER_ACCESS_KEY and PEER_SECRET_KEY in the environment); another checkout of this
project (`--checkout`), to compare before and after; bare uvicorn with the same parser. MinIO's server is in
no package registry: not_run.

Small: put, get and head of 4 KiB from 16 connections, signed; puts a second to `fdatasync` one at a time.
Large: 64 MiB, put to MD5 of the same bytes and to `dd` with fsync, and get to nginx from the same disk
(plain, where ours is decrypted and verified). The put is sent by hand with a signature that does not cover
the body, once with one core and once with all, which the client uses, too; boto3, which hashes the body
before the first byte, has a row of its own. Eight parts of 8 MiB, four at a time, are compared to one
stream. Lists: a page of 1,000 keys of a bucket with many keys, to one with 1,000. Then memory and the start
to the first answer.
"""

import argparse
import asyncio
import hashlib
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from object_peers import (
    WEED,
    Server,
    gateway,
    given_peer,
    nginx,
    packaged,
    running,
    seaweedfs,
)

from tests.fast.object_gateway.s3.raw import signed_head

SMALL, LARGE, MIB = bytes(4096), 64 << 20, 1 << 20
CONNECTIONS = 16
FEWEST_REQUESTS = 400
PARTS = 8
CORES = list(range(os.cpu_count() or 1))


async def bare(scope: Any, receive: Any, send: Any) -> None:
    while scope["type"] == "http" and (await receive()).get("more_body"):
        pass
    headers = [(b"content-length", b"%d" % len(SMALL))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": SMALL})


def serve_bare() -> None:
    """Serve until the process is ended; print the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(
        bare, http="httptools", loop="uvloop", lifespan="off", access_log=False, log_level="error"
    )
    asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


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
            theirs, _ = measure(peer)
            figures.add(f"{method} 4 KiB: ms of processor time of {name}", theirs)
            figures.add(f"{method} 4 KiB: processor time to {name}", own / theirs)
        if method == "PUT":
            figures.add("PUT 4 KiB: puts a second from 16 connections", rate)
            figures.add(
                "PUT 4 KiB: puts a second to one fdatasync at a time", rate / flushes_a_second(folder)
            )


def send(server: Server, target: str, body: memoryview) -> None:
    """Put these bytes, with a signature that does not cover them."""
    head = signed_head(server.s3(), "PUT", f"/{server.bucket}/{target}", {"Content-Length": str(len(body))})
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head)
        connection.sendall(body)
        with connection.makefile("rb") as answer:
            status = answer.readline()
            assert b" 200 " in status, status


def send_parts(server: Server, client: Any, body: memoryview) -> None:
    where = {"Bucket": server.bucket, "Key": "parts"}
    upload = client.create_multipart_upload(**where)["UploadId"]
    size = len(body) // PARTS

    def part(number: int) -> None:
        target = f"parts?partNumber={number + 1}&uploadId={upload}"
        send(server, target, body[size * number : size * (number + 1)])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(part, range(PARTS)))
    listed = client.list_parts(**where, UploadId=upload)["Parts"]
    done = [{"PartNumber": each["PartNumber"], "ETag": each["ETag"]} for each in listed]
    client.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": done})


def large(figures: Figures, servers: dict[str, Server], folder: Path, web: Server | None) -> None:
    body = os.urandom(LARGE)
    digest = seconds(lambda: hashlib.md5(body, usedforsecurity=False).digest())
    flushed = seconds(lambda: dd(folder))
    figures.add("MD5 alone of 64 MiB: seconds", digest)
    for name, server in servers.items():
        put(figures, name, server, body, digest, flushed)
        get = get_seconds(server)
        figures.add(f"get 64 MiB, {name}: MiB/s", LARGE / MIB / get)
        if web is not None:
            (folder / "large").write_bytes(body)
            plain = seconds(lambda: urllib.request.urlopen(f"http://127.0.0.1:{web.port}/large").read())
            figures.add(f"get 64 MiB, {name}: speed to nginx", plain / get)


def put(figures: Figures, name: str, server: Server, body: bytes, digest: float, flushed: float) -> None:
    client, view = server.s3().client(), memoryview(body)
    before = server.cpu()
    one = seconds(lambda: send(server, "large", view))
    used = server.cpu() - before
    figures.add(f"put 64 MiB, {name}: seconds of processor time", used)
    figures.add(f"put 64 MiB, {name}: processor time of MD5 alone to it", digest / used)
    figures.add(f"put 64 MiB, {name}: speed to MD5 alone", digest / one)
    figures.add(f"put 64 MiB, {name}: seconds to dd with fsync", one / flushed)
    whole = seconds(lambda: client.put_object(Bucket=server.bucket, Key="large", Body=body))
    figures.add(f"put 64 MiB by boto3, {name}: speed to MD5 alone", digest / whole)
    with all_cores(server):
        one = seconds(lambda: send(server, "large", view))
        figures.add(f"put 64 MiB, {name}, all cores: speed to MD5 alone", digest / one)
        parts = seconds(lambda: send_parts(server, client, view))
        figures.add(f"put 64 MiB as 8 parts, {name}, all cores: speed to one stream", one / parts)


def get_seconds(server: Server) -> float:
    where = {"Bucket": server.bucket, "Key": "large"}
    link = server.s3().client().generate_presigned_url("get_object", where)
    return seconds(lambda: urllib.request.urlopen(link).read())


@contextmanager
def all_cores(server: Server) -> Iterator[None]:
    """Let the server and this client use all cores."""
    server.use_cores(CORES)
    os.sched_setaffinity(0, CORES)
    try:
        yield
    finally:
        server.use_cores(CORES[:1])
        os.sched_setaffinity(0, CORES[1:] or CORES)


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
        client.create_bucket(Bucket=bucket)
        fill(server, bucket, count)
        before = server.cpu()
        for number in range(50):
            after = f"{count // 50 * number:09d}" if count > 1000 else ""
            client.list_objects_v2(Bucket=bucket, StartAfter=after)
        costs[count] = (server.cpu() - before) / 50 * 1000
    figures.add("page of 1,000 keys: ms of processor time", costs[1000])
    figures.add(f"page of a bucket of {keys} keys: processor time to one of 1,000", costs[keys] / costs[1000])


def start(figures: Figures, given: argparse.Namespace, stack: ExitStack) -> dict[str, Server]:
    """Start the peers that are on the machine."""
    peers: dict[str, Server] = {}
    if WEED.exists():
        peers["SeaweedFS"] = stack.enter_context(seaweedfs())
    else:
        figures.not_run("all against SeaweedFS: scripts/install-client seaweedfs")
    for name, program in (("radosgw", "usr/bin/radosgw"), ("swift", "usr/bin/swift-proxy-server")):
        if given.debian is not None and (given.debian / program).exists():
            peers[name] = stack.enter_context(packaged(name, given.debian))
        else:
            figures.not_run(f"all against {name}: --debian with its packages")
    figures.not_run("all against MinIO: its server is in no package registry")
    peers.update(given.peer)
    for name, folder in given.checkout:
        peers[name] = stack.enter_context(gateway(Path(folder)))
    return peers


def memory(figures: Figures, ours: Server, peers: dict[str, Server]) -> None:
    own = ours.memory()
    figures.add("memory after this, MiB", own / MIB)
    for name, peer in peers.items():
        figures.add(f"memory of {name}, MiB", peer.memory() / MIB)
        figures.add(f"memory to {name}, which has fewer keys", own / peer.memory())
        if peer.start_seconds:
            figures.add(f"start to the first answer, to {name}", ours.start_seconds / peer.start_seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=2000, help="small requests of each kind in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keys", type=int, default=100_000, help="keys of the large bucket of the lists")
    parser.add_argument(
        "--debian", type=Path, help="folder of a Debian with radosgw or Swift; its /etc/swift changes"
    )
    parser.add_argument("--peer", type=given_peer, action="append", default=[], metavar="NAME=PORT,PID[,PID]")
    parser.add_argument(
        "--checkout", type=lambda text: text.split("=", 1), action="append", default=[], metavar="NAME=FOLDER"
    )
    parser.add_argument("--serve-bare", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve_bare:
        serve_bare()
        return
    if given.requests < FEWEST_REQUESTS:
        parser.error(
            f"--requests: at least {FEWEST_REQUESTS}, since processor time is counted in ticks of 10 ms"
        )
    figures = Figures()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # the peers end, too
    os.sched_setaffinity(0, CORES[1:] or CORES)
    print(f"load average before: {os.getloadavg()[0]:.1f}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)  # nginx reads it as another user
        ours = stack.enter_context(gateway())
        peers = start(figures, given, stack)
        plain = stack.enter_context(running([sys.executable, __file__, "--serve-bare"]))
        web = stack.enter_context(nginx(folder)) if shutil.which("nginx") else None
        if web is None:
            figures.not_run("get 64 MiB against nginx: apt-get install nginx-light")
        for server in (ours, *peers.values()):
            server.s3().client().create_bucket(Bucket="bench")
        for _ in range(given.rounds):
            small(figures, ours, {**peers, "bare uvicorn": plain}, given.requests, folder)
            large(figures, {"ours": ours, **peers}, folder, web)
        memory(figures, ours, peers)
        pages(figures, ours, given.keys)
        figures.add("memory after the keys, MiB", ours.memory() / MIB)
    print(f"load average after: {os.getloadavg()[0]:.1f}")
    figures.print()


if __name__ == "__main__":
    main()
