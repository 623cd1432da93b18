"""The node agents of workers: asked in the worker's pod, and put there.

The agent and the interpreter that runs it are in the pod's own root, which tenants do not reach: unlike what
`SlurmAccess.run_in_shared_root` runs, nothing of it is theirs, and its answer comes by a pipe of the engine.
"""

import asyncio
from collections.abc import Sequence

from neocloud.core.service import Dependencies
from neocloud.engines.base import Engine, EngineError, ExecResult, Reference
from neocloud.fleet.agent.delivery import MOST_BYTES
from neocloud.services.slurm.api.findings import last_line
from neocloud.services.slurm.public import AgentMissing, WorkersUnreachable
from neocloud.services.slurm.types import namespace

FOLDER = "/run/neocloud/agent"
"""The image's keep-agent makes it for each start of the container."""
ASK = (
    *("/usr/bin/python3", "-I", f"{FOLDER}/agent.pyz", "carry"),
    *("--spool", f"{FOLDER}/spool", "--last", f"{FOLDER}/last"),
)
INSTALL = (
    "/bin/sh",
    "-c",
    f"set -e; umask 077; cd {FOLDER}; cat >.draft; mv .draft agent.pyz; "
    'if [ -e pid ]; then kill "$(cat pid)" 2>/dev/null || true; fi',
)
"""keep-agent starts it, and starts another version in its place when the old one ends."""


class PodAgents:
    """Implements `public.WorkerAgents`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @classmethod
    def of(cls, dependencies: Dependencies) -> "PodAgents":
        return cls(dependencies.engine)

    async def ask(
        self,
        cluster_id: str,
        worker: str,
        *,
        after: int,
        of: str,
        trusted: Sequence[str],
        inventory: str,
        seconds: float,
    ) -> bytes:
        more = ("--after", str(after), "--of", of, "--trusted", ",".join(trusted), "--inventory", inventory)
        result = await self._run(cluster_id, worker, (*ASK, *more), b"", seconds)
        return result.stdout

    async def install(self, cluster_id: str, worker: str, program: bytes, seconds: float) -> None:
        await self._run(cluster_id, worker, INSTALL, program, seconds)

    async def _run(
        self, cluster_id: str, worker: str, command: Sequence[str], stdin: bytes, seconds: float
    ) -> ExecResult:
        try:
            async with asyncio.timeout(seconds):
                result = await self._engine.exec(
                    *(Reference("Pod", namespace(cluster_id), worker), command),
                    stdin=stdin,
                    timeout_seconds=seconds,
                    max_output_bytes=MOST_BYTES,
                )
        except TimeoutError as error:
            raise WorkersUnreachable(f"its agent gave no answer within {seconds:g} s") from error
        except EngineError as error:
            raise WorkersUnreachable(f"its agent was not asked: {error}") from error
        if result.exit_code:
            why = last_line(result.stderr, result.exit_code)
            if "can't open file" in why and "agent.pyz" in why:
                raise AgentMissing("its agent is not there yet: it is put there after a start of the pod")
            raise WorkersUnreachable(f"its agent does not run: {why}")
        return result
