"""A Slurm on a fake engine's worker pods: nodes register, leave and are set down; no job ever runs.

Pass `FakeSlurm(world).connect` to a control plane as its `SlurmFactory`. It is for faults and speed; jobs are
tested with real Slurm.
"""

import pickle  # reads what it wrote itself, in tests  # nosec B403
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC

from neocloud.engines.fake import FakeWorld
from neocloud.services.slurm.render import CONTROLLER_POD, ROLE_LABEL, WORKER_ROLE
from neocloud.services.slurm.slurmrestd import SlurmJob, SlurmNode, SlurmUnreachable


class FakeSlurm:
    """All clusters of one fake world. The state of Slurm is in a file beside the world's."""

    def __init__(self, world: FakeWorld) -> None:
        self._world = world
        self._path = world.path.with_suffix(".slurm") if world.path else None
        self.records: dict[str, dict[str, SlurmNode]] = {}
        """Node records by namespace and name, as slurmctld remembers them."""
        if self._path and self._path.exists():
            self.records = pickle.loads(self._path.read_bytes())  # its own file  # nosec B301
        self.is_reachable = True
        self.calls: list[tuple[str, ...]] = []
        """Calls that changed something, in order: ("DOWN", "worker-0"), ("delete", "worker-1"), ..."""

    def connect(self, address: str, key: bytes) -> "FakeSlurmApi":
        for pod in self._world.pods.values() if self.is_reachable else ():
            if pod.ip == address and pod.reference.name == CONTROLLER_POD:
                return FakeSlurmApi(self, self._world, pod.reference.namespace)
        raise SlurmUnreachable(f"nothing answers at {address}")

    def save(self) -> None:
        if self._path:
            partial = self._path.with_suffix(".partial")
            partial.write_bytes(pickle.dumps(self.records))
            partial.replace(self._path)


class FakeSlurmApi:
    """Implements SlurmApi for one namespace."""

    def __init__(self, slurm: FakeSlurm, world: FakeWorld, namespace: str) -> None:
        self._slurm = slurm
        self._world = world
        self._records = slurm.records.setdefault(namespace, {})
        self._namespace = namespace

    async def version(self) -> str:
        return "24.11-fake"

    async def nodes(self) -> Sequence[SlurmNode]:
        self._register()
        return list(self._records.values())

    async def set_node_state(self, name: str, state: str, reason: str) -> None:
        self._slurm.calls.append((state, name))
        old = self._records[name]
        drained = old.states & {"DRAIN"}
        states = {"RESUME": {"IDLE"}, "DOWN": {"DOWN", *drained}}.get(state, {*old.states, state})
        self._records[name] = replace(old, states=frozenset(states), reason=reason)
        self._slurm.save()

    async def delete_node(self, name: str) -> None:
        self._slurm.calls.append(("delete", name))
        del self._records[name]
        self._slurm.save()

    async def jobs(self) -> Sequence[SlurmJob]:
        return []

    async def finished_job(self, job_id: int) -> SlurmJob | None:
        return None

    async def finished_jobs(self) -> Sequence[SlurmJob]:
        return []

    async def cancel_job(self, job_id: int) -> None:
        raise SlurmUnreachable("a fake Slurm runs no jobs")

    async def start_job_now(self, job_id: int) -> None:
        raise SlurmUnreachable("a fake Slurm runs no jobs")

    async def messages_under_way(self) -> int:
        return 0

    async def reconfigure(self) -> None:
        self._slurm.calls.append(("reconfigure",))

    async def close(self) -> None:
        return None

    def _register(self) -> None:
        """Every running worker registers, as slurmd does when it starts."""
        for pod in self._world.pods_of(self._namespace):
            is_worker = pod.manifest.labels.get(ROLE_LABEL) == WORKER_ROLE
            started_at = pod.containers[0].started_at
            if not is_worker or not pod.containers[0].is_running or started_at is None:
                continue
            name = pod.reference.name
            known = self._records.get(name)
            if known is None or known.slurmd_started_at < started_at:
                kept = known.states & {"DRAIN"} if known else frozenset()
                reason = known.reason if known and kept else ""
                self._records[name] = SlurmNode(
                    name, frozenset({"IDLE", *kept}), reason, pod.ip, started_at.astimezone(UTC), 0
                )
                self._slurm.save()
