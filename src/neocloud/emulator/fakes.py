# pyright: standard, reportMissingModuleSource=false
"""Fakes of what services talk to besides the engine and machines: Slurm, model servers and folders.

Pass `FakeSlurm(world).connect` as the `SlurmFactory` of a control plane: nodes register, leave and are set
down, but no job runs.

`FakeModelReader` reports a small model for any folder. `FakeModelServerClient` keeps which adapters each
address has loaded, as a model server would until it restarts.

These are for faults and speed. Jobs, machines and models are tested with the real programs elsewhere.
"""

import hashlib
import json
import pickle  # reads what it wrote itself, in tests  # nosec B403
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from neocloud.engines.base import ExecResult, Reference
from neocloud.engines.fake import FakeWorld
from neocloud.engines.manifest.base import quantity
from neocloud.fleet.active.report import Report, encode
from neocloud.fleet.agent.delivery import FORMAT
from neocloud.fleet.agent.document import Document, NotRun, to_json
from neocloud.fleet.nodes.events import Verdict
from neocloud.messages.neocloud.inference.v1 import Model, ModelStatus
from neocloud.services.inference.public import Location, ModelFolders, weights_folder
from neocloud.services.inference.reconcile.model_server import ModelServerRefused, ModelServerUnreachable
from neocloud.services.slurm.public import Reservation
from neocloud.services.slurm.reconcile.controllers import SAY_IN_CONTROL
from neocloud.services.slurm.reconcile.login_nodes import COUNT_SESSIONS
from neocloud.services.slurm.render import CONTROLLER_PODS, ENTER_ROOT, ROLE_LABEL, WORKER_ROLE
from neocloud.services.slurm.slurm_records import Json, SlurmJob, SlurmNode
from neocloud.services.slurm.slurmrestd import STATISTICS, SlurmUnreachable
from neocloud.services.slurm.types import ADD_USER, DELIVER_KEYS, REMOVE_USER
from neocloud.services.slurm.worker_agents import ASK, INSTALL

PROBE = ("python3", "-")
"""The program of a worker's figures is its standard input."""


ACTIVE_CHECKS = ("python3", "-I", "-c")


class FakeSlurm:
    """All clusters of one fake world. The state of Slurm is in a file beside the world's."""

    def __init__(self, world: FakeWorld) -> None:
        self._world = world
        self._path = world.path.with_suffix(".slurm") if world.path else None
        self.records: dict[str, dict[str, SlurmNode]] = {}
        """Node records by namespace and name, as slurmctld remembers them."""
        if self._path and self._path.exists():
            self.records = pickle.loads(self._path.read_bytes())  # its own file  # nosec B301
        self.reservations: dict[str, dict[str, Reservation]] = {}
        """Reservations by namespace and name; kept in no file."""
        self.is_reachable = True
        self.silent: set[str] = set()
        """Addresses of controllers that do not answer."""
        self.calls: list[tuple[str, ...]] = []
        """Calls that changed something, in order: ("DOWN", "worker-0"), ("delete", "worker-1"), ..."""

        self.figures: dict[str, dict[str, object]] = {}
        """Figures that the probe of a worker finds instead, by its name; kept in no file."""
        self.checks: dict[str, Callable[[Sequence[str]], ExecResult]] = {}
        """Functions that answer for the active checks of a worker, by its name: each gets the arguments of
        the program.
        """

        self.said: dict[str, Sequence[Verdict]] = {}
        """Verdicts of the agent of a worker, by the worker's name."""
        self.agents: dict[Reference, str] = {}
        """Versions of the agents that were put into workers."""

    def connect(self, address: str, key: bytes) -> "FakeSlurmApi":
        for pod in self._world.pods.values() if self.is_reachable else ():
            if pod.ip == address and pod.reference.name in CONTROLLER_PODS and address not in self.silent:
                return FakeSlurmApi(self, self._world, pod.reference.namespace)
        raise SlurmUnreachable(f"nothing answers at {address}")

    def respond(
        self, pod: Reference, container: str, command: Sequence[str], stdin: bytes
    ) -> ExecResult | None:
        """Answer as a `responder` of a FakeEngine: `scontrol create` makes nodes that are off, and the
        probe of a worker finds what its manifest promises."""
        if tuple(command) == (ENTER_ROOT, *PROBE) and self._is_worker(pod):
            limits = self._world.pods[pod].containers[0].manifest.limits
            memory_mib = quantity(limits["memory"], "memory") // 2**20
            figures = {"cpus": float(str(limits["cpu"])), "memory_mib": int(memory_mib), "gpus": None}
            return ExecResult(0, json.dumps(figures | self.figures.get(pod.name, {})).encode(), b"")
        if tuple(command) == INSTALL and self._is_worker(pod):
            self.agents[pod] = hashlib.sha256(stdin).hexdigest()
            return ExecResult(0, b"", b"")
        if tuple(command[: len(ASK)]) == ASK and self._is_worker(pod):
            return self._agent(pod)
        if tuple(command[:4]) == (ENTER_ROOT, *ACTIVE_CHECKS) and self._is_worker(pod):
            return self.checks.get(pod.name, run_no_check)(command)
        if tuple(command[:3]) == ("scontrol", "create", "reservation"):
            given = {each.partition("=")[0]: each.partition("=")[2] for each in command[3:]}
            self._reserve(pod.namespace, given)
            return ExecResult(0, b"", b"")
        if tuple(command[:2]) == ("scontrol", "delete"):
            del self.reservations[pod.namespace][command[2].removeprefix("ReservationName=")]
            return ExecResult(0, b"", b"")
        if tuple(command[:2]) != ("scontrol", "create"):
            return None
        created = frozenset({"IDLE", "CLOUD", "POWERED_DOWN"})
        for name in command[2].removeprefix("NodeName=").split(","):
            self.calls.append(("create", name))
            node = SlurmNode(name, created, "", name, datetime.fromtimestamp(0, UTC), 0)
            self.records.setdefault(pod.namespace, {})[name] = node
        self.save()
        return ExecResult(0, b"", b"")

    def _agent(self, pod: Reference) -> ExecResult:
        """Answer as an agent that keeps no records."""
        if pod not in self.agents:
            return ExecResult(2, b"", b"python3: can't open file 'agent.pyz'\n")
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        verdicts = self.said.get(pod.name, ())
        last = to_json(Document(pod.name, "fake", time.time(), now, verdicts))
        fields = {"format": FORMAT, "spool": "fake", "version": self.agents[pod], "now_s": now, "last": last}
        return ExecResult(0, json.dumps({**fields, "changes": [], "n": 0, "has_more": False}).encode(), b"")

    def _reserve(self, namespace: str, given: Mapping[str, str]) -> None:
        name, flags = given["ReservationName"], given["Flags"]
        moments = (given[key].removeprefix("uts") for key in ("StartTime", "EndTime"))
        start, end = (
            datetime.now(UTC) if each == "now" else datetime.fromtimestamp(int(each), UTC) for each in moments
        )
        self.calls.append(("reserve", name, flags))
        made = Reservation(name, tuple(given["Nodes"].split(",")), start, end)
        self.reservations.setdefault(namespace, {})[name] = made

    def _is_worker(self, pod: Reference) -> bool:
        found = self._world.pods.get(pod)
        if found is None or not found.containers[0].is_running:
            return False
        return found.manifest.labels.get(ROLE_LABEL) == WORKER_ROLE

    def set_power(self, namespace: str, name: str, state: str) -> None:
        """Set the state of Slurm's power saving: POWERING_UP for a job that waits, POWERED_DOWN, ..."""
        known = self.records[namespace][name]
        self.records[namespace][name] = replace(known, states=frozenset({"IDLE", "CLOUD", state}))
        self.save()

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
        power = old.states & {"CLOUD", "POWERED_DOWN"}
        states = {
            "RESUME": {"IDLE", *power},
            "DOWN": {"DOWN", *drained},
            "POWER_UP": {"IDLE", "CLOUD", "POWERING_UP"},
        }.get(state, {*old.states, state})
        self._records[name] = replace(old, states=frozenset(states), reason=reason)
        self._slurm.save()

    async def delete_node(self, name: str) -> None:
        self._slurm.calls.append(("delete", name))
        del self._records[name]
        self._slurm.save()

    async def reservations(self) -> Sequence[Reservation]:
        return list(self._slurm.reservations.get(self._namespace, {}).values())

    async def jobs(self) -> Sequence[SlurmJob]:
        return []

    async def job(self, job_id: int) -> SlurmJob | None:
        return next((job for job in await self.jobs() if job.id == job_id), None)

    async def finished_job(self, job_id: int) -> SlurmJob | None:
        return None

    async def finished_jobs(self) -> Sequence[SlurmJob]:
        return []

    async def accounting_rows(self, job_id: int) -> Sequence[Json]:
        return []

    async def cancel_job(self, job_id: int) -> None:
        raise SlurmUnreachable("a fake Slurm runs no jobs")

    async def start_job_in(self, job_id: int, seconds: int) -> None:
        raise SlurmUnreachable("a fake Slurm runs no jobs")

    async def hold_job(self, job_id: int, why: str) -> None:
        raise SlurmUnreachable("a fake Slurm runs no jobs")

    async def statistics(self) -> Mapping[str, int]:
        return dict.fromkeys(STATISTICS, 0)

    async def messages_under_way(self) -> int:
        return 0

    async def reconfigure(self) -> None:
        self._slurm.calls.append(("reconfigure",))

    async def forward(
        self, verb: str, path: str, query: str, body: bytes, max_bytes: int
    ) -> tuple[int, bytes]:
        raise SlurmUnreachable("a fake Slurm has no REST service")

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


def run_no_check(command: Sequence[str]) -> ExecResult:
    """Answer as the program of active checks: a fake worker can measure nothing, and says so."""
    host = command[command.index("--host") + 1]
    names = [each.removeprefix("--check=") for each in command if each.startswith("--check=")]
    not_run = [NotRun(name, "This worker is emulated") for name in names]
    document = Document(host, "emulated", time.time(), 0.0, not_run=not_run, simulated="an emulated worker")
    return ExecResult(0, encode(Report(document)), b"")


def respond_as_login_node(
    pod: Reference, container: str, command: Sequence[str], stdin: bytes
) -> ExecResult | None:
    """Answer what the control plane runs on login nodes and controllers, as a `responder` of a FakeEngine."""
    if tuple(command) == SAY_IN_CONTROL:
        return ExecResult(0, b"0 1\n", b"")
    if tuple(command) == (ENTER_ROOT, *COUNT_SESSIONS):
        return ExecResult(0, b"sl local_address rem_address st\n", b"")
    if command[:1] == [ENTER_ROOT] and DELIVER_KEYS in command:
        return ExecResult(0, b"", b"")
    if command[:1] != [ENTER_ROOT] or not {ADD_USER, REMOVE_USER} & set(command):
        return None
    if REMOVE_USER in command:
        names = command[command.index(REMOVE_USER) + 1 :]
        return ExecResult(0, "".join(f"removed {name}\n" for name in names).encode(), b"")
    items = [item.split(":") for item in command[command.index(ADD_USER) + 2 :]]
    made = "".join(f"user {name}:{uid}:made\n" for name, uid, *_ in items)
    return ExecResult(0, made.encode(), b"")


class FakeModelReader:
    """A ModelReader that reads nothing."""

    reads_files = False

    async def read(self, folder: Location, base_folder: Location | None) -> ModelStatus:
        status = ModelStatus(
            architecture="EmulatedForCausalLM",
            context_length=32768,
            parameters=600_000_000,
            size_bytes=1_200_000_000,
            dtype="bfloat16",
            kv_bytes_per_token=16384,
            adapter_bytes_per_rank=500_000,
            digest="0" * 64,
            has_chat_template=True,
            task=ModelStatus.GENERATE,
        )
        if base_folder is not None:
            status.lora_rank, status.parameters, status.size_bytes = 16, 4_000_000, 8_000_000
            status.target_modules.extend(["k_proj", "o_proj", "q_proj", "v_proj"])
            status.kv_bytes_per_token = status.adapter_bytes_per_rank = 0
        return status


class FakeModelFolders(ModelFolders):
    """Takes the folder of a model from its spec, without reading it."""

    reads_files = False

    def locate_known(self, model: Model) -> Location:
        return Location(weights_folder(model, self))


class FakeModelServerClient:
    """A ModelServerClient that makes no request."""

    def __init__(self, *, reads_files: bool = True) -> None:
        self.reads_files = reads_files
        self.loaded: defaultdict[str, set[str]] = defaultdict(set)
        """Names of adapters by address."""
        self.warmed: list[tuple[str, str]] = []
        """(address, name) of every warm-up request."""
        self.silent: set[str] = set()
        """Addresses that do not answer."""
        self.refused: set[str] = set()
        """Names of adapters that every model server refuses."""

    async def names(self, address: str, key: str) -> frozenset[str]:
        self._require(address)
        return frozenset(self.loaded[address])

    async def load(self, address: str, key: str, name: str, path: str) -> None:
        self._require(address)
        if name in self.refused:
            raise ModelServerRefused("no such file")
        self.loaded[address].add(name)

    async def unload(self, address: str, key: str, name: str) -> None:
        self._require(address)
        self.loaded[address].discard(name)

    async def warm_up(self, address: str, key: str, name: str, *, task: str = "GENERATE") -> None:
        self._require(address)
        self.warmed.append((address, name))

    def proving(self) -> "FakeModelServerClient":
        return self

    def _require(self, address: str) -> None:
        if address in self.silent:
            raise ModelServerUnreachable(f"{address} does not answer")
