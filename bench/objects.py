"""Measure the object gateway: processor time of a request, and large objects, as ratios in one run.

Small: put, get and head of 4 KiB, from 16 connections: the processor time of the server for one request, and
its ratio to uvicorn with the same parser, which reads the body and answers with 4 KiB. Large: put and get of
64 MiB by boto3, on the same cores, and the ratio to `dd` with fsync. Rounds alternate; figures are medians.

    python bench/objects.py [--requests 2000] [--rounds 3]
"""

import argparse
import asyncio
import io
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import uvicorn

from neocloud.testing.object_control_plane import Account, FakeControlPlane

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.objects.s3.raw import signed_head
from tests.objects.s3.served import Served, serving

SMALL, LARGE = bytes(4096), 64 * 1024**2
CONNECTIONS = 16


async def bare(scope: Any, receive: Any, send: Any) -> None:
    while scope["type"] == "http" and (await receive()).get("more_body"):
        pass
    headers = [(b"content-length", b"%d" % len(SMALL))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": SMALL})


def serve(kind: str) -> None:
    """Serve until the standard input ends; print the port."""
    if kind == "bare":
        listener = socket.create_server(("127.0.0.1", 0))
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(
            bare, http="httptools", loop="uvloop", lifespan="off", access_log=False, log_level="error"
        )
        asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))
        return
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as s3:
        bucket = s3.make_bucket()
        print(s3.address[1], bucket, flush=True)
        sys.stdin.read()


@contextmanager
def child(kind: str) -> Iterator[tuple[psutil.Process, list[str]]]:
    command = [sys.executable, __file__, "--serve", kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        said = process.stdout.readline().split()
        try:
            yield psutil.Process(process.pid), said
        finally:
            process.stdin.close()
            process.terminate()
            process.wait(20)


def cpu_ms(process: psutil.Process, port: int, data: bytes, requests: int, is_head: bool) -> float:
    """Return the milliseconds of processor time of the server for one request."""

    def drive(count: int) -> None:
        with (
            socket.create_connection(("127.0.0.1", port)) as connection,
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
    before = sum(process.cpu_times()[:2])
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(drive, [requests // CONNECTIONS] * CONNECTIONS))
    return (sum(process.cpu_times()[:2]) - before) / (requests // CONNECTIONS * CONNECTIONS) * 1000


def seconds(call: Callable[[], object]) -> float:
    begin = time.monotonic()
    call()
    return time.monotonic() - begin


def dd(folder: str) -> None:
    target = os.path.join(folder, "dd")
    command = [
        "dd",
        "if=/dev/zero",
        f"of={target}",
        "bs=1M",
        f"count={LARGE >> 20}",
        "conv=fsync",
        "status=none",
    ]
    subprocess.run(command, check=True)
    os.unlink(target)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", choices=("bare", "objects"))
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return
    found: dict[str, list[float]] = {}
    with (
        child("objects") as (ours, said),
        child("bare") as (theirs, other),
        tempfile.TemporaryDirectory() as folder,
    ):
        port, bucket, bare_port = int(said[0]), said[1], int(other[0])
        owner = Account("NCAKOWNER0000000", "the-secret-of-the-owner")
        s3 = Served(("127.0.0.1", port), FakeControlPlane(), None, None, Path(), owner)  # type: ignore[arg-type]
        client, body = s3.client(), os.urandom(LARGE)
        for _ in range(given.rounds):
            for method, content in (("PUT", SMALL), ("GET", b""), ("HEAD", b"")):
                length = {"Content-Length": str(len(content))} if content else {}
                data = signed_head(s3, method, f"/{bucket}/k", length) + content
                own = cpu_ms(ours, port, data, given.requests, method == "HEAD")
                base = cpu_ms(theirs, bare_port, data, given.requests, method == "HEAD")
                found.setdefault(f"{method} 4 KiB: ms of processor time a request", []).append(own)
                found.setdefault(f"{method} 4 KiB: to bare uvicorn", []).append(own / base)
            disk = seconds(lambda: dd(folder))
            put = seconds(lambda: client.put_object(Bucket=bucket, Key="large", Body=io.BytesIO(body)))
            get = seconds(lambda: client.get_object(Bucket=bucket, Key="large")["Body"].read())
            found.setdefault("put 64 MiB: seconds to dd with fsync", []).append(put / disk)
            found.setdefault("get 64 MiB: MiB/s", []).append((LARGE >> 20) / get)
    for name, values in found.items():
        print(f"{name:50} {statistics.median(values):8.2f}")


if __name__ == "__main__":
    main()
