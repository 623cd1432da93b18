"""A control plane in a process of its own, to be killed: its world outlives it in files, as containers do."""

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from neocloud.control_plane import state_dir
from neocloud.engines.fake import FakeWorld
from neocloud.settings.settings import Settings
from tests.fast.services.slurm.cloud import fake_cloud

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.real.services.slurm.killable"])


async def _serve(folder: Path) -> None:
    world = FakeWorld.open(folder / "world")
    async with fake_cloud(folder, world) as cloud:
        first, addresses = cloud.running.first, cloud.running.server.addresses
        state_dir.announce(
            Settings(home=folder),
            grpc=addresses.grpc,
            http=addresses.http,
            credentials=first.credentials,
            tenant_id=first.tenant_id,
            project_id=first.project_id,
        )
        await asyncio.Event().wait()


def _main(folder: Path) -> None:
    asyncio.run(_serve(folder))


@contextmanager
def server_process(folder: Path) -> Iterator[int]:
    """A running server's pid. It is killed with SIGKILL on the way out, if it still lives."""
    (folder / "server.json").unlink(missing_ok=True)
    process = _processes.Process(target=_main, args=(folder,), daemon=True)
    process.start()
    assert process.pid
    try:
        yield process.pid
    finally:
        process.kill()
        process.join()
