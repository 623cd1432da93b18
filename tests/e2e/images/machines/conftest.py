"""Builds what a machine needs, once for all tests that ever run here, and starts an engine of its own."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from neocloud.engines.podman import PodmanEngine
from tests import ROOT, leftovers
from tests.e2e.images.machines.bench import MachineBench


def built(name: str, *options: str) -> Path:
    folder = Path(os.environ.get("NEOCLOUD_TEST_IMAGES", ROOT / ".cache" / "images")).absolute()
    command = [sys.executable, ROOT / "images" / name / "build", "--output", folder, *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MachineBench]:
    """A network without machines."""
    images = built("launcher")
    home = tmp_path_factory.mktemp("home")
    leftovers.record(home)
    (home / "images").mkdir()
    (home / "images" / "machine").symlink_to(images / "machine")
    key = home / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    launcher = json.loads((images / "launcher" / "image.json").read_text())
    engine = PodmanEngine(home)
    try:
        await engine.load_image(images / "launcher" / launcher["archive"])
        bench = MachineBench(engine, launcher["name"], key)
        await bench.network()
        yield bench
    finally:
        await engine.destroy()
        await engine.close()
    leftovers.forget(home)


@pytest_asyncio.fixture(loop_scope="module")
async def machine(bench: MachineBench) -> AsyncIterator[MachineBench]:
    """The same; what a test starts is removed."""
    try:
        yield bench
    finally:
        await bench.remove()
