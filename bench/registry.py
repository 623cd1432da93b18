"""Measure the container registry against Debian's docker-registry, as ratios in one run.

    apt-get install docker-registry                  # without it the rows are not_run
    python bench/registry.py [--layers 4] [--layer-mib 68] [--rounds 3]

An image of random layers is pushed, layer by layer in one request each, and pulled, over one connection; then
its manifest is asked for 32 times with HEAD. docker-registry has its defaults, no sign-in and a folder on the
same disk; ours encrypts, and has every answered layer on the disk. The server runs on one core, the client on
another.
"""

import argparse
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from object_gateway import OWNER
from object_peers import Server, free_port, gateway, running
from objects import MIB, Figures

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fast.object_gateway.oci.client import MANIFEST, digest_of, manifest

CONFIG = """
version: 0.1
storage: {{ filesystem: {{ rootdirectory: {folder} }} }}
http: {{ addr: "127.0.0.1:{port}" }}
"""


@contextmanager
def docker_registry() -> Iterator[Server]:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.yml")
        config.write_text(CONFIG.format(folder=folder, port=port))
        with running(["docker-registry", "serve", config], port) as server:
            yield server


def open_repository(server: Server) -> tuple[httpx.Client, str]:
    """Return a client that may push and pull, and what its paths begin with."""
    base = f"http://127.0.0.1:{server.port}"
    if not server.registry:
        return httpx.Client(base_url=base, timeout=120, trust_env=False), "/v2/bench"
    name = f"{server.registry}/bench"
    answer = httpx.get(
        f"{base}/v2/token",
        params={"scope": f"repository:{name}:pull,push"},
        auth=(OWNER.aws_access_key_id, OWNER.secret),
    )
    headers = {"Authorization": f"Bearer {answer.raise_for_status().json()['token']}"}
    return httpx.Client(base_url=base, headers=headers, timeout=120, trust_env=False), f"/v2/{name}"


class Image:
    def __init__(self, layers: int, layer_mib: int) -> None:
        self.layers = [os.urandom(layer_mib * MIB) for _ in range(layers)]
        self.config = secrets.token_bytes(512)
        self.manifest = manifest(self.config, *self.layers)

    def push(self, http: httpx.Client, path: str) -> None:
        for content in (self.config, *self.layers):
            begun = http.post(f"{path}/blobs/uploads/").raise_for_status()
            place = httpx.URL(begun.headers["Location"]).copy_merge_params({"digest": digest_of(content)})
            http.put(place, content=content).raise_for_status()
        headers = {"Content-Type": MANIFEST}
        http.put(f"{path}/manifests/one", content=self.manifest, headers=headers).raise_for_status()

    def pull(self, http: httpx.Client, path: str) -> None:
        http.get(f"{path}/manifests/one", headers={"Accept": MANIFEST}).raise_for_status()
        for content in (self.config, *self.layers):
            found = http.get(f"{path}/blobs/{digest_of(content)}").raise_for_status()
            assert len(found.content) == len(content)

    def heads(self, http: httpx.Client, path: str) -> None:
        for _ in range(32):
            http.head(f"{path}/manifests/one", headers={"Accept": MANIFEST}).raise_for_status()


def measure(server: Server, layers: int, layer_mib: int) -> dict[str, tuple[float, float]]:
    """Return seconds, and the server's seconds of processor time, by what is done. The image is a new one."""
    image, found = Image(layers, layer_mib), {}
    http, path = open_repository(server)
    with http:
        for name, work in (("push", image.push), ("pull", image.pull), ("32 HEAD", image.heads)):
            before, begin = server.cpu(), time.monotonic()
            work(http, path)
            found[name] = (time.monotonic() - begin, server.cpu() - before)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--layer-mib", type=int, default=68)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    figures = Figures()
    if shutil.which("docker-registry") is None:
        figures.not_run("all against docker-registry: apt-get install docker-registry")
        figures.print()
        return
    if (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, set(range(1, os.cpu_count() or 1)))
    with gateway() as ours, docker_registry() as theirs:
        for _ in range(given.rounds):
            measured = measure(ours, given.layers, given.layer_mib)
            peer = measure(theirs, given.layers, given.layer_mib)
            for name, (seconds, cpu) in measured.items():
                figures.add(f"{name}: seconds", seconds)
                figures.add(f"{name}: seconds to docker-registry", seconds / peer[name][0])
                figures.add(f"{name}: seconds of processor time", cpu)
                if peer[name][1] > 0.05:  # below that the clock of processor time is too coarse
                    figures.add(f"{name}: processor time to docker-registry", cpu / peer[name][1])
        for name, server in (("ours", ours), ("docker-registry", theirs)):
            figures.add(f"memory of {name}, MiB", server.memory() / MIB)
    figures.print()


if __name__ == "__main__":
    main()
