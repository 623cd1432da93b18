"""A control plane in a process of its own that kills itself with SIGKILL at a chosen call after it has
decided to drain a node. Its store, its world and Slurm outlive it in files."""

import asyncio
import inspect
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from neocloud.control_plane import state_dir
from neocloud.core.store.event_rows import EventLogRows
from neocloud.core.store.protocol import Store
from neocloud.emulator.fakes import FakeSlurmApi
from neocloud.engines.base import Reference
from neocloud.engines.fake import FakeEngine, FakeWorld
from neocloud.services.slurm.types import CLUSTER
from tests.fast.services.slurm.cloud import FakeCloud, fake_cloud

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.long.services.fleet.killable"])
DRAIN, RETURNED = b'"type":"DrainRequested"', b'"type":"Returned"'


@dataclass
class Fuse:
    """Counts calls from the first drain that is appended; kills the process at the one of this number."""

    folder: Path
    calls: int
    count: int = 0
    has_begun: bool = False

    def saw(self, body: bytes) -> None:
        if DRAIN in body:
            self.has_begun = True
        if self.has_begun and RETURNED in body:
            (self.folder / "calls").write_text(str(self.count))

    def tick(self) -> None:
        if self.has_begun:
            self.count += 1
            if self.count == self.calls:
                os.kill(os.getpid(), signal.SIGKILL)


def _arm(store: Store, fuse: Fuse) -> None:
    """Put every write of the store and every call that changes the engine or Slurm on the fuse."""
    write, append = type(store).write, EventLogRows.append_event

    async def mortal_write(self: Store, work: Callable[[Any], Any], *more: Any, **options: Any) -> Any:
        def mortal(tx: Any) -> Any:
            result = work(tx)
            fuse.tick()
            return result

        result = await write(self, mortal, *more, **options)
        fuse.tick()
        return result

    def noted_append(self: Any, log: str, event: Any) -> int:
        fuse.saw(event.body)
        return append(self, log, event)

    type(store).write = mortal_write  # type: ignore[method-assign]
    EventLogRows.append_event = noted_append  # type: ignore[method-assign]
    for owner, name in ((FakeEngine, "apply"), (FakeEngine, "remove"), (FakeSlurmApi, "set_node_state")):
        setattr(owner, name, _mortal(getattr(owner, name), fuse))


def _mortal(method: Callable[..., Any], fuse: Fuse) -> Callable[..., Any]:
    assert inspect.iscoroutinefunction(method)

    async def call(*arguments: Any, **options: Any) -> Any:
        fuse.tick()
        result = await method(*arguments, **options)
        fuse.tick()
        return result

    return call


async def _serve(folder: Path, commands: Connection) -> None:
    world = FakeWorld.open(folder / "world")
    async with fake_cloud(folder, world) as cloud:
        first, addresses = cloud.running.first, cloud.running.server.addresses
        state_dir.announce(
            cloud.settings,
            grpc=addresses.grpc,
            http=addresses.http,
            credentials=first.credentials,
            tenant_id=first.tenant_id,
            project_id=first.project_id,
        )
        while True:
            name, calls = await asyncio.to_thread(commands.recv)
            await _break(cloud, name, Fuse(folder, calls))


async def _break(cloud: FakeCloud, name: str, fuse: Fuse) -> None:
    _arm(cloud.running.store, fuse)
    (cluster,) = await cloud.running.store.read(lambda tx: tx.list(CLUSTER)[0])
    cloud.engine.kill(Reference("Pod", cluster.id, name))


def _main(folder: Path, commands: Connection) -> None:
    asyncio.run(_serve(folder, commands))


@dataclass
class Server:
    process: Any
    commands: Connection

    def break_worker(self, name: str, *, killed_at: int) -> None:
        """End the pod of a worker. 0: the server lives."""
        self.commands.send((name, killed_at))


@contextmanager
def server_process(folder: Path) -> Iterator[Server]:
    """A running server. It is killed with SIGKILL on the way out, if it still lives."""
    (folder / "server.json").unlink(missing_ok=True)
    ours, theirs = _processes.Pipe()
    process = _processes.Process(target=_main, args=(folder, theirs), daemon=True)
    process.start()
    try:
        yield Server(process, ours)
    finally:
        process.kill()
        process.join()
