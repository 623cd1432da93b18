"""Output of the program of an endpoint or a job: read from the engine, and kept when its pod is removed.

The last lines of one run are kept in a file of the state folder, which no container sees. A program
may print keys, so reading it needs a permission beyond `get`.
"""

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from neocloud.core import contract, wire
from neocloud.core.osfiles import make_folder, write_file
from neocloud.core.service import Call, Method
from neocloud.core.store.protocol import Transaction
from neocloud.core.untrusted.files import Folder
from neocloud.engines.base import Engine, EngineError, EngineUnavailable, LogPage, ObservedPod, Reference
from neocloud.messages.neocloud.ai.v1 import ReadEndpointLogRequest, ReadJobLogRequest, WorkloadLog
from neocloud.services.ai.render import RUN_LABEL
from neocloud.services.ai.types import CONTAINER, ENDPOINT, JOB, POD, Workload, is_at_rest, namespace

logger = logging.getLogger(__name__)

KEPT_BYTES = 256 * 1024
"""Bytes at the end of a log that are kept once its pod is gone."""
_LARGEST_FILE = 8 * KEPT_BYTES
"""In JSON a byte takes six characters at most."""
_SERVICE = "neocloud.ai.v1.LogService"
_NOUNS = {ENDPOINT: "endpoint", JOB: "job"}

ReadLogRequest = ReadEndpointLogRequest | ReadJobLogRequest


@dataclass(frozen=True)
class KeptLog:
    run: str
    lines: tuple[str, ...]
    next_line: int
    """The number of the line after the last one, counted in the log of which these lines are the end."""

    def page(self, first_line: int, tail: int) -> tuple[Sequence[str], int]:
        """Return the lines from `first_line` on, or the last `tail` ones, and the number of the next line."""
        if tail:
            return self.lines[-tail:], self.next_line
        missed = self.next_line - first_line if first_line <= self.next_line else self.next_line
        return self.lines[max(0, len(self.lines) - missed) :], self.next_line


class KeptLogs:
    """The ends of logs whose pods are gone, by workload. All calls block while the disk works."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "ai-logs"

    def read(self, workload_id: str) -> KeptLog | None:
        try:
            with Folder.open(self._folder) as folder:
                found = json.loads(folder.read(f"{workload_id}.json", limit=_LARGEST_FILE))
            run, lines, next_line = found["run"], tuple(found["lines"]), found["next_line"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        is_whole = isinstance(run, str) and isinstance(next_line, int)
        return KeptLog(run, lines, next_line) if is_whole and all(map(_is_text, lines)) else None

    def write(self, workload_id: str, run: str, lines: Sequence[str], next_line: int) -> None:
        """Keep the end of a log, in place of the one before. A disk that is full holds up nothing."""
        content = json.dumps({"run": run, "lines": _end_of(lines), "next_line": next_line})
        try:
            make_folder(self._folder, 0o700)
            write_file(self._folder / f"{workload_id}.json", content)
        except OSError as error:
            logger.warning("The log of %s is not kept: %s", workload_id, error)

    def remove(self, workload_id: str) -> None:
        (self._folder / f"{workload_id}.json").unlink(missing_ok=True)


def _is_text(line: object) -> bool:
    return isinstance(line, str)


def _end_of(lines: Sequence[str]) -> Sequence[str]:
    """Return the last lines that fit into KEPT_BYTES, with their line ends."""
    room, first = KEPT_BYTES, len(lines)
    while first and (room := room - len(lines[first - 1].encode()) - 1) >= 0:
        first -= 1
    return lines[first:]


async def keep_log(engine: Engine, home: Path, workload_id: str, pod: ObservedPod) -> None:
    """Keep the end of the log of a pod that is about to be removed. Raises EngineUnavailable."""
    try:
        page = await engine.log_page(pod.reference, container=CONTAINER, tail=_MOST_KEPT_LINES)
    except EngineUnavailable:
        raise
    except EngineError as error:
        logger.warning("The log of %s is not kept: %s", workload_id, error)
        return
    run = pod.labels.get(RUN_LABEL, "")
    await asyncio.to_thread(KeptLogs(home).write, workload_id, run, page.lines, page.next_line)


_MOST_KEPT_LINES = 10_000


def _method(verb: str, kind: str, permission: str) -> Method[ReadLogRequest]:
    async def handler(call: Call, request: ReadLogRequest) -> WorkloadLog:
        workload = await call.dependencies.store.read(lambda tx: _workload(tx, kind, request.id))
        engine, kept_logs = call.dependencies.engine, KeptLogs(call.dependencies.settings.home)
        try:
            pod = (await engine.observe(namespace(request.id))).pod(POD)
            page = None if pod is None or request.previous else await _page(engine, pod, request)
        except EngineUnavailable as error:
            raise contract.unavailable(str(error)) from error
        if pod is not None and page is not None:
            run = pod.labels.get(RUN_LABEL, "")
            return WorkloadLog(lines=page.lines, next_line=page.next_line, run=run)
        reason = "" if pod is not None else workload.status.state_details.message
        answer = WorkloadLog(reason=reason, is_complete=request.previous or _is_over(workload))
        kept = await asyncio.to_thread(kept_logs.read, request.id)
        if kept is not None and not (request.previous and pod is None):  # else it is shown without that
            first_line = request.first_line if request.run in ("", kept.run) else 0
            lines, answer.next_line = kept.page(first_line, request.tail)
            answer.lines.extend(lines)
            answer.run = kept.run
        return answer

    return Method(f"{_SERVICE}/{verb}", handler, permission, target=lambda request: request.id)


def _workload(tx: Transaction, kind: str, workload_id: str) -> Workload:
    row = tx.get(workload_id)
    if row is None or row.kind != kind:
        raise contract.not_found(_NOUNS[kind], workload_id)
    return wire.resource_message(row)


async def _page(engine: Engine, pod: ObservedPod, request: ReadLogRequest) -> LogPage | None:
    """Return a page of a pod's log; None where the pod was removed in the meantime."""
    is_same = request.run in ("", pod.labels.get(RUN_LABEL, ""))
    reference = Reference("Pod", pod.reference.namespace, pod.reference.name)
    try:
        return await engine.log_page(
            reference,
            container=CONTAINER,
            first_line=request.first_line if is_same else 0,
            tail=request.tail,
        )
    except EngineUnavailable:
        raise
    except EngineError:
        return None


def _is_over(workload: Workload) -> bool:
    status = workload.status
    return is_at_rest(type(status).State.Name(status.state), status.state_details.code)


METHODS = (
    _method("ReadEndpointLog", ENDPOINT, "ai.endpoints.readLog"),
    _method("ReadJobLog", JOB, "ai.jobs.readLog"),
)
