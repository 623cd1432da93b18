"""Runs the programs of active checks on workers, and reads what they print."""

import asyncio
import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from neocloud.fleet.active import catalogue as checks
from neocloud.fleet.active.__main__ import MOST_SECONDS
from neocloud.fleet.active.bundle import LOADER, archive
from neocloud.fleet.active.report import MOST_REPORT_BYTES, Report, decode
from neocloud.fleet.active.run import BUSY_FACTOR
from neocloud.fleet.agent.document import DocumentError
from neocloud.services.fleet.checks.pairs import CHECKS as PAIR_CHECKS
from neocloud.services.fleet.types import plain
from neocloud.services.slurm.public import WorkerNodes, WorkersUnreachable

GRACE_SECONDS = 30.0
"""Grace of a run, beyond the deadlines of its checks."""
FOLDER = "/var/tmp"  # nosec B108 - the program makes a new folder of its own there
ALL = "0.0.0.0"  # nosec B104 - the address of a pod is not known in it, and others have no token
PORTS = range(20_000, 30_000)
"""Ports of the server of a pair: below those that Linux gives to clients."""


@dataclass(frozen=True)
class CheckPrograms:
    workers: WorkerNodes

    async def test(
        self, cluster_id: str, worker: str, names: Collection[str], at: float
    ) -> tuple[Report | None, str]:
        """Return the report of a worker on these checks, or why there is none."""
        seconds = _seconds(names)
        arguments = ["run", *_common(worker, seconds), *(f"--check={name}" for name in names)]
        try:
            return only(await self._report(cluster_id, worker, arguments, seconds, at), names), ""
        except (WorkersUnreachable, DocumentError) as error:
            return None, plain(str(error))

    async def test_pair(
        self, cluster_id: str, first: str, second: str, at: float
    ) -> tuple[Report | None, str]:
        """Return what the first worker measured with the second, or why there is nothing. A job on either
        of them cuts it short."""
        names, token = [each.name for each in PAIR_CHECKS], secrets.token_hex(16)
        port, seconds = PORTS.start + secrets.randbelow(len(PORTS)), _seconds(names)
        serve = ["serve", *_common(second, seconds), "--address", ALL, "--port", str(port)]
        measure = ["run", *_common(first, seconds), "--partner", f"{second}:{port}"]
        measure += [f"--check={name}" for name in names]
        found = await asyncio.gather(
            self._report(cluster_id, second, serve, seconds, at, token),
            self._report(cluster_id, first, measure, seconds, at, token),
            return_exceptions=True,
        )
        reports = list[Report]()
        for name, each in zip((second, first), found, strict=True):
            if isinstance(each, WorkersUnreachable | DocumentError):
                return None, plain(f"{name}: {each}")
            if isinstance(each, BaseException):
                raise each
            reports.append(each)
        served, measured = reports
        if served.preempted and not measured.preempted:
            after = served.preempted_after_s
            measured = replace(measured, preempted=served.preempted, preempted_after_s=after)
        return only(measured, names), ""

    async def _report(
        self,
        cluster_id: str,
        worker: str,
        arguments: Sequence[str],
        seconds: float,
        at: float,
        token: str = "",
    ) -> Report:
        command = ["python3", "-I", "-c", LOADER, *arguments]
        data = await self.workers.run(
            *(cluster_id, worker, command, archive(token), seconds + GRACE_SECONDS, MOST_REPORT_BYTES)
        )
        return decode(data, host=worker, at=at)


def _seconds(names: Collection[str]) -> float:
    """Return how long a run may take, also where its programs wait for processors."""
    seconds = sum(each.seconds for each in checks.catalogue() if each.name in names)
    return min(GRACE_SECONDS + BUSY_FACTOR * seconds, MOST_SECONDS)


def _common(worker: str, seconds: float) -> list[str]:
    return ["--stop-for-jobs", "--host", worker, "--folder", FOLDER, "--most-seconds", f"{seconds:g}"]


def only(report: Report, names: Iterable[str]) -> Report:
    """Return what a report says of the checks that were asked for."""
    asked = frozenset(names)
    document = replace(
        report.document,
        verdicts=[each for each in report.document.verdicts if each.check in asked],
        not_run=[each for each in report.document.not_run if each.check in asked],
    )
    return replace(
        report, document=document, measured=[each for each in report.measured if each.check in asked]
    )
