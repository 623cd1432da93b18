"""The workers of clusters for the fleet service: read from the engine and Slurm, drained, resumed, restarted
and measured."""

import asyncio
import logging
import signal
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from neocloud.core.clock import Clock
from neocloud.core.reconcile.wakes import Wakes
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Resource
from neocloud.engines.base import Engine, EngineError, Observation, ObservedPod, PodPhase, Reference
from neocloud.messages.neocloud.slurm.v1 import ClusterSpec, NodeSet
from neocloud.services.compute.public import preset
from neocloud.services.slurm.access import SlurmAccess
from neocloud.services.slurm.api.check import probe_program
from neocloud.services.slurm.api.findings import BadReport, figure_findings, last_line, node_figures
from neocloud.services.slurm.public import (
    RESERVATION_PREFIX,
    Measurement,
    Reservation,
    ReservationRefused,
    Worker,
    WorkersUnreachable,
)
from neocloud.services.slurm.render import CONTROLLER_PODS
from neocloud.services.slurm.slurm_records import SlurmJob, SlurmNode
from neocloud.services.slurm.slurmrestd import SlurmApi, SlurmError
from neocloud.services.slurm.types import ClusterUnreachable, namespace

logger = logging.getLogger(__name__)

MAX_REPORT_BYTES = 64 * 1024
CONTROLLER_CONTAINER = "controller"
SCONTROL_SECONDS = 20.0


class ClusterWorkers:
    """Implements `public.WorkerNodes`."""

    def __init__(self, engine: Engine, access: SlurmAccess, clock: Clock, wakes: Wakes) -> None:
        self._engine = engine
        self._access = access
        self._clock = clock
        self._wakes = wakes

    @classmethod
    def of(cls, dependencies: Dependencies) -> "ClusterWorkers":
        wakes = dependencies.provided.get(Wakes)
        return cls(dependencies.engine, SlurmAccess.of(dependencies), dependencies.clock, wakes)

    async def look(self, cluster_id: str, node_set: str) -> Sequence[Worker]:
        cluster, found = await self._node_set(cluster_id, node_set)
        names = [f"{node_set}-{index}" for index in range(found.count)]
        observation = await self._observe(cluster_id)
        async with self._slurm(cluster_id, observation) as slurm:
            nodes = {node.name: node for node in await slurm.nodes()}
            is_busy = any(nodes[name].is_busy for name in names if name in nodes)
            jobs = await slurm.jobs() if is_busy else ()
            if not all(nodes[name].takes_jobs for name in names if name in nodes):
                # Again after Slurm: a pod lost in between is then seen as lost, and not as well and drained.
                observation = await self._observe(cluster_id)
        running = _jobs_by_node(jobs)
        places = _places(ClusterSpec.FromString(cluster.spec))
        hardware = f"{found.platform}/{found.preset}"
        return [
            replace(
                _worker(
                    *(name, node_set, places.get(name, ())),
                    *(observation.pod(name), nodes.get(name), running.get(name)),
                ),
                hardware=hardware,
            )
            for name in names
        ]

    async def drain(self, cluster_id: str, worker: str, reason: str) -> None:
        async with self._slurm(cluster_id) as slurm:
            await slurm.set_node_state(worker, "DRAIN", reason)
        self._wakes.wake(cluster_id)  # it shows the states

    async def resume(self, cluster_id: str, worker: str) -> None:
        async with self._slurm(cluster_id) as slurm:
            await slurm.set_node_state(worker, "RESUME", "")
        self._wakes.wake(cluster_id)

    async def restart(self, cluster_id: str, worker: str) -> None:
        try:
            await self._engine.remove([Reference("Pod", namespace(cluster_id), worker)])
        except EngineError as error:
            raise WorkersUnreachable(f"the pod of {worker} cannot be removed: {error}") from error
        logger.info("The pod of %s is started again, for its repair", worker)

    async def reservations(self, cluster_id: str) -> Mapping[str, Reservation]:
        async with self._slurm(cluster_id) as slurm:
            found = await slurm.reservations()
        return {each.name: each for each in found if each.name.startswith(RESERVATION_PREFIX)}

    async def reserve(self, cluster_id: str, reservation: Reservation) -> None:
        is_due = reservation.start <= self._clock.now()
        await self._scontrol(
            cluster_id,
            *("create", "reservation", f"ReservationName={reservation.name}", "Users=root"),
            f"StartTime={'now' if is_due else f'uts{int(reservation.start.timestamp())}'}",
            f"EndTime=uts{int(reservation.end.timestamp())}",
            *(f"Nodes={','.join(reservation.workers)}", "Flags=MAINT,IGNORE_JOBS,OVERLAP"),
        )

    async def cancel_reservation(self, cluster_id: str, name: str) -> None:
        await self._scontrol(cluster_id, "delete", f"ReservationName={name}")

    async def _scontrol(self, cluster_id: str, *arguments: str) -> None:
        """Run it beside the controller: Slurm's REST service of this release cannot change reservations."""
        try:
            observation = await self._access.observe(cluster_id)
            pods = [name for name in CONTROLLER_PODS if (pod := observation.pod(name)) and pod.ready]
            if not pods:
                raise WorkersUnreachable("no controller is ready")
            result = await self._engine.exec(
                Reference("Pod", namespace(cluster_id), pods[0]),
                ["scontrol", *arguments],
                container=CONTROLLER_CONTAINER,
                timeout_seconds=SCONTROL_SECONDS,
            )
        except EngineError as error:
            raise WorkersUnreachable(f"scontrol did not run: {error}") from error
        if result.exit_code:
            raise ReservationRefused(last_line(result.stderr or result.stdout, result.exit_code))
        logger.info("Slurm: scontrol %s", " ".join(arguments))

    async def measure(self, cluster_id: str, worker: str, seconds: float) -> Sequence[Measurement]:
        _, found = await self._node_set(cluster_id, worker.rpartition("-")[0])
        try:
            async with asyncio.timeout(seconds):
                result = await self._access.run_in_shared_root(
                    *(cluster_id, worker, ["python3", "-"]),
                    stdin=probe_program("node.py"),
                    timeout_seconds=seconds,
                    max_output_bytes=MAX_REPORT_BYTES,
                )
            if result.exit_code:
                raise WorkersUnreachable(f"its probe failed: {last_line(result.stderr, result.exit_code)}")
            figures = node_figures(result.stdout)
        except TimeoutError as error:
            raise WorkersUnreachable(f"its probe gave no answer within {seconds:g} s") from error
        except EngineError as error:
            raise WorkersUnreachable(f"its probe did not run: {error}") from error
        except BadReport as error:
            raise WorkersUnreachable(f"the report of its probe cannot be used: {error}") from error
        return [
            Measurement(each.check, each.verdict == "pass", each.measured, each.threshold)
            for each in figure_findings(worker, preset(found.platform, found.preset), figures)
            if each.verdict in ("pass", "fail")
        ]

    async def run(
        self,
        cluster_id: str,
        worker: str,
        command: Sequence[str],
        stdin: bytes,
        seconds: float,
        most_bytes: int,
    ) -> bytes:
        try:
            result = await self._access.run_in_shared_root(
                *(cluster_id, worker, command),
                stdin=stdin,
                timeout_seconds=seconds,
                max_output_bytes=most_bytes,
            )
        except EngineError as error:
            raise WorkersUnreachable(f"{command[0]} did not run: {error}") from error
        if result.exit_code:
            raise WorkersUnreachable(f"{command[0]} failed: {last_line(result.stderr, result.exit_code)}")
        return result.stdout

    async def _node_set(self, cluster_id: str, name: str) -> tuple[Resource, NodeSet]:
        try:
            cluster = await self._access.ready_cluster(cluster_id)
        except ClusterUnreachable as error:
            raise WorkersUnreachable(str(error)) from error
        for found in ClusterSpec.FromString(cluster.spec).node_sets:
            if found.name == name and not found.HasField("elastic"):
                return cluster, found
        raise WorkersUnreachable(f"the cluster has no node set {name} of workers that stay")

    async def _observe(self, cluster_id: str) -> Observation:
        try:
            return await self._access.observe(cluster_id)
        except EngineError as error:
            raise WorkersUnreachable(f"the engine: {error}") from error

    @asynccontextmanager
    async def _slurm(
        self, cluster_id: str, observation: Observation | None = None
    ) -> AsyncGenerator[SlurmApi]:
        try:
            async with self._access.api(cluster_id, observation) as slurm:
                yield slurm
        except SlurmError as error:
            raise WorkersUnreachable(f"Slurm: {error}") from error
        except EngineError as error:
            raise WorkersUnreachable(f"the engine: {error}") from error


def _worker(
    name: str,
    node_set: str,
    place: tuple[str, ...],
    pod: ObservedPod | None,
    node: SlurmNode | None,
    job: int | None,
) -> Worker:
    is_running = pod is not None and pod.phase is PodPhase.RUNNING and pod.started_at is not None
    started_at = pod.started_at if pod is not None and is_running else None
    problem = "" if is_running else "its pod is gone"
    if pod is not None and not is_running:
        problem = f"its pod is {pod.phase.value}{': ' + pod.message if pod.message else ''}"
    if node is None:
        return Worker(name, node_set, place, started_at, problem)
    # Slurm's start times are in whole seconds, rounded down.
    is_registered = started_at is not None and node.slurmd_started_at >= started_at.replace(microsecond=0)
    return Worker(
        *(name, node_set, place, started_at, problem, node.states, node.reason),
        is_registered=is_registered,
        is_busy=node.is_busy,
        job=job,
        host=pod.node if pod is not None else "",
        ended=exit_words(pod.last_exit) if pod is not None else "",
    )


def exit_words(code: int | None) -> str:
    """Return what an exit code says of how a pod ended; a signal is 128 and its number."""
    if code is None:
        return ""
    if not 128 < code < 128 + signal.NSIG:
        return f"its pod ended with exit code {code}"
    number = code - 128
    name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
    why = "; the kernel sends it where memory is short" if number == signal.SIGKILL else ""
    return f"its pod was ended by signal {number} ({name}){why}"


def _jobs_by_node(jobs: Sequence[SlurmJob]) -> dict[str, int]:
    found: dict[str, int] = {}
    for job in sorted(jobs, key=lambda job: job.id, reverse=True):
        if job.state in ("RUNNING", "SUSPENDED"):
            found.update(dict.fromkeys(job.nodes, job.id))
    return found


def _places(spec: ClusterSpec) -> dict[str, tuple[str, ...]]:
    return {
        f"{place.node_set}-{index}": tuple(place.path)
        for place in spec.topology.nodes
        for index in range(place.first, place.last + 1)
    }
