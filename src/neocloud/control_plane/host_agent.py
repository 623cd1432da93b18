"""The node agent of this machine: started, restarted when it dies or hangs, and asked for its records.

It is the same program that looks at any host, with the lowest priority and a spool in the state folder. It
ends with the control plane; what it has found until then is asked for by the next one. A control plane that
is killed leaves it behind, and the next one, or `neo down`, ends it.
"""

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from neocloud.control_plane.gateway_supervisor import ended_within
from neocloud.core.child_process import Backoff, Child
from neocloud.core.clock import Clock
from neocloud.core.process import Process, boot_id
from neocloud.fleet.agent import delivery
from neocloud.fleet.agent.host import since_boot
from neocloud.services.fleet.public import Host, HostsUnreachable

INTERVAL_SECONDS = 15.0
LOOK_SECONDS = 30.0
HUNG_SECONDS = 300.0
"""Without a new word, it is ended and started again. That it hangs is a finding long before."""
STOP_SECONDS = 2.0
"""It may be in the middle of its probes, and loses nothing when it is killed."""
NICE = ("nice", "-n", "19")
logger = logging.getLogger(__name__)


class LocalHost:
    """Implements `HostNodes` for a cloud of one machine, which the control plane runs on."""

    def __init__(
        self,
        home: Path,
        clock: Clock,
        *,
        name: str = "",
        command: Sequence[str] = (sys.executable, "-m", "neocloud.fleet.agent"),
        interval: float = INTERVAL_SECONDS,
        hung_after: float = HUNG_SECONDS,
    ) -> None:
        self._clock, self._hung_after = clock, hung_after
        self.name = name or socket.gethostname()
        folder = agent_folder(home)
        self._spool, self._last = folder / "spool", folder / "last"
        places = ("--spool", str(self._spool), "--last", str(self._last))
        self._arguments = [
            *NICE,
            *command,
            "watch",
            *places,
            "--host",
            self.name,
            "--interval",
            f"{interval:g}",
        ]
        self._child = agent_child(home)
        self._answer: asyncio.Future[bytes] | None = None

    async def look(self) -> Sequence[Host]:
        boot = boot_id()
        if not boot:
            raise HostsUnreachable("the boot of this machine cannot be read in /proc")
        return (Host(self.name, boot, self._clock.now().timestamp() - since_boot()),)

    async def ask(self, host: str, *, after: int, of: str, inventory: str, seconds: float) -> bytes:
        if host != self.name:
            raise HostsUnreachable(f"no host {host} is known; this machine is {self.name}")
        if self._answer is not None and not self._answer.done():
            raise HostsUnreachable("the disk of the state folder does not answer")
        self._answer = asyncio.ensure_future(asyncio.to_thread(self._read, after, of, inventory))
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(self._answer)
        except TimeoutError:
            raise HostsUnreachable(f"its records were not read within {seconds:g} s") from None
        except OSError as error:
            raise HostsUnreachable(f"its records cannot be read: {error}") from error

    def _read(self, after: int, of: str, inventory: str) -> bytes:
        program = delivery.read_program("")
        return delivery.answer(
            *(self._spool, self._last, program),
            after=after,
            of=of,
            trusted="",
            inventory=inventory,
            now=since_boot(),
        )

    async def run(self) -> None:
        """Keep the agent running. Ends it when it is cancelled."""
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(_stop, self._child)
        try:
            while True:
                began = loop.time()
                try:
                    process = self._child.start(self._arguments)
                except OSError as error:
                    logger.error("the agent of this host cannot be started: %s", error)
                    await asyncio.sleep(LOOK_SECONDS)
                    continue
                await self._until_ended(process)
                await asyncio.sleep(self._child.note_death(loop.time() - began))
        finally:
            await asyncio.shield(asyncio.to_thread(_stop, self._child))

    async def _until_ended(self, process: Process) -> None:
        began = time.time()
        every = min(LOOK_SECONDS, self._hung_after)
        while not await ended_within(process, every):
            quiet = time.time() - max(began, await asyncio.to_thread(self._last_word))
            if quiet > self._hung_after:
                logger.error("the agent of this host has said nothing for %.0f s; it is ended", quiet)
                process.send(signal.SIGKILL)

    def _last_word(self) -> float:
        try:
            return (self._last / delivery.LAST).stat().st_mtime
        except OSError:
            return 0.0


def agent_folder(home: Path) -> Path:
    return home / "agent"


def agent_child(home: Path) -> Child:
    backoff = Backoff(first_seconds=1.0, longest_seconds=300.0)
    return Child(
        "agent of this host", home / "log" / "agent.log", agent_folder(home) / "process.json", backoff
    )


async def stop_host_agent(home: Path) -> None:
    """End the agent of this state folder, if there is one."""
    await asyncio.to_thread(_stop, agent_child(home))


def _stop(child: Child) -> None:
    if (process := child.find()) is not None:
        process.stop(STOP_SECONDS)
