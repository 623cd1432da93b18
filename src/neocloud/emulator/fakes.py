"""Fakes of what services talk to besides the engine: Slurm, launchers of machines, model servers and folders.

Pass `FakeSlurm(world).connect` as the `SlurmFactory` of a control plane: nodes register, leave and are set
down, but no job runs. Pass `FakeMachines(world).respond` as the `responder` of a FakeEngine: it answers
`machine-control` as the launcher's control program does, but no guest runs; a test sets the state of one.

`FakeModelReader` reports a small model for any folder. `FakeModelServerClient` keeps which adapters each
address has loaded, as a model server would until it restarts.

These are for faults and speed. Jobs, machines and models are tested with the real programs elsewhere.
"""

import json
import pickle  # reads what it wrote itself, in tests  # nosec B403
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from neocloud.engines.base import ExecResult, Reference
from neocloud.engines.fake import FakeWorld
from neocloud.engines.fake.world import ContainerState
from neocloud.engines.manifest import Secret
from neocloud.engines.manifest.base import quantity
from neocloud.messages.neocloud.inference.v1 import Model, ModelStatus
from neocloud.services.compute.disk_export import CLUSTER, ExportedFile
from neocloud.services.compute.disk_import import WHOLE
from neocloud.services.compute.reconcile.disk_export_pod import EXPORT_POD
from neocloud.services.compute.reconcile.image_import import IMPORT_POD
from neocloud.services.inference.public import Location, ModelFolders, weights_folder
from neocloud.services.inference.reconcile.model_server import ModelServerRefused, ModelServerUnreachable
from neocloud.services.slurm.reconcile.controllers import SAY_IN_CONTROL
from neocloud.services.slurm.reconcile.login_nodes import COUNT_SESSIONS
from neocloud.services.slurm.render import CONTROLLER_PODS, ENTER_ROOT, ROLE_LABEL, WORKER_ROLE
from neocloud.services.slurm.slurmrestd import Json, SlurmJob, SlurmNode, SlurmUnreachable
from neocloud.services.slurm.types import ADD_USER, DELIVER_KEYS, REMOVE_USER

PROGRAM = "machine-control"
EMPTY_DISK_BYTES = 2**30
PROBE = ("python3", "-")
"""The program of a worker's figures is its standard input."""


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
        self.silent: set[str] = set()
        """Addresses of controllers that do not answer."""
        self.calls: list[tuple[str, ...]] = []
        """Calls that changed something, in order: ("DOWN", "worker-0"), ("delete", "worker-1"), ..."""

        self.figures: dict[str, dict[str, object]] = {}
        """What the probe of a worker finds instead, by its name; kept in no file."""

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
        if tuple(command[:2]) != ("scontrol", "create"):
            return None
        created = frozenset({"IDLE", "CLOUD", "POWERED_DOWN"})
        for name in command[2].removeprefix("NodeName=").split(","):
            self.calls.append(("create", name))
            node = SlurmNode(name, created, "", name, datetime.fromtimestamp(0, UTC), 0)
            self.records.setdefault(pod.namespace, {})[name] = node
        self.save()
        return ExecResult(0, b"", b"")

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

    async def start_job_now(self, job_id: int) -> None:
        raise SlurmUnreachable("a fake Slurm runs no jobs")

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


@dataclass
class FakeMachines:
    """All machines of one fake world, by the name of their namespace."""

    world: FakeWorld
    states: dict[str, str] = field(default_factory=dict)
    """The state that QEMU reports for a guest; "running" where none is set."""
    reasons: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[str, ...]] = field(default_factory=list)
    """All calls but `status`, as (namespace, verb, arguments...)."""
    mute: set[str] = field(default_factory=set)
    """Machines whose QEMU does not answer."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes of disks that were changed while their machine ran."""
    limits: dict[str, dict[str, int]] = field(default_factory=dict)
    """Limits of disks, likewise."""
    attached: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The disks of each guest as it was described to the machine, with the time of its start."""
    keeping: set[str] = field(default_factory=set)
    """Disks that their guest does not release."""

    imported: dict[str, bytes] = field(default_factory=dict)
    """The file that was written to each import of an image."""

    exported: bytes = field(default_factory=lambda: empty_disk())
    """The file that each export of a disk reads: nothing was ever written to a disk of a fake machine."""

    def respond(
        self, pod: Reference, container: str, command: Sequence[str], stdin: bytes
    ) -> ExecResult | None:
        if pod.name == EXPORT_POD:
            return self._export(command)
        if pod.name == IMPORT_POD:
            return self._import(pod, command, stdin)
        if not command or command[0] != PROGRAM:
            return respond_as_login_node(pod, container, command, stdin)
        if pod.namespace in self.mute:
            return _answer({"error": "QEMU does not answer on its socket"}, exit_code=1)
        verb, *arguments = command[1:]
        if verb == "status":
            return _answer(self._status(pod))
        self.calls.append((pod.namespace, verb, *arguments))
        disks = self._disks(pod)
        if verb == "resize-disk":
            self.sizes[arguments[0]] = int(arguments[1])
        elif verb == "limit-disk":
            self.limits[arguments[0]] = json.loads(arguments[1])
        elif verb == "attach-disk":
            disk = json.loads(arguments[0])
            claims = {claim.name for claim in self.world.pods[pod].manifest.mounted_claims}
            if disk["id"] not in claims:
                return _answer({"error": f"{disk['path']} is not there"}, exit_code=1)
            disks[disk["id"]] = disk
        elif verb == "detach-disk":
            if arguments[0] in disks and arguments[0] in self.keeping:
                return _answer({"is_detached": False})
            disks.pop(arguments[0], None)
            return _answer({"is_detached": True})
        return _answer({})

    def _export(self, command: Sequence[str]) -> ExecResult:
        """Answer as the pod that reads a disk for its export."""
        if command[0] == "cat":
            return _answer({"file_size_bytes": len(self.exported)})
        offset, size = map(int, command[-2:])
        return ExecResult(0, self.exported[offset : offset + size], b"")

    def _import(self, pod: Reference, command: Sequence[str], stdin: bytes) -> ExecResult:
        """Answer as the pod that imports an image: the file is kept, and taken for a disk of its length."""
        if command[0] == "stat":
            return ExecResult(0, b"1000000000 4096\n", b"")
        if command[0] == "cat":
            return ExecResult(1, b"", b"")
        if not command[1].endswith(f"/{WHOLE}"):
            kept = b"" if "seek=0" in command else self.imported.get(pod.namespace, b"")
            self.imported[pod.namespace] = kept + stdin
            return ExecResult(0, b"", b"")
        found = self.world.pods[pod].containers[0]
        found.logs.append(json.dumps({"size_bytes": len(self.imported[pod.namespace])}))
        found.state, found.exit_code = ContainerState.EXITED, 0
        return ExecResult(0, b"", b"")

    def _disks(self, pod: Reference) -> dict[str, Any]:
        """Return the guest's disks by id: those of its start, and what was done since."""
        started_at = self.world.pods[pod].containers[0].started_at
        known = self.attached.get(pod.namespace)
        if known is None or known["started_at"] != started_at:
            disks = {disk["id"]: disk for disk in self.desired(pod.namespace)["disks"]}
            known = self.attached[pod.namespace] = {"started_at": started_at, "disks": disks}
        return known["disks"]

    def desired(self, namespace: str) -> dict[str, Any]:
        """Return the machine's desired state, as the machine reads it."""
        secret = self.world.objects[Reference("Secret", namespace, "machine")]
        assert isinstance(secret, Secret)
        return json.loads(secret.contents["machine.json"])

    def _status(self, pod: Reference) -> dict[str, object]:
        namespace = pod.namespace
        disks = {
            disk_id: {
                "size_bytes": self.sizes.setdefault(disk_id, disk["size_bytes"]),
                "io_status": "ok",
                "limits": self.limits.setdefault(disk_id, disk["limits"]),
            }
            for disk_id, disk in self._disks(pod).items()
        }
        state = self.states.get(namespace, "running")
        return {"state": state, "reason": self.reasons.get(namespace, ""), "disks": disks}


def empty_disk() -> bytes:
    """Return an empty disk as a qcow2 file."""
    file = ExportedFile.of_empty_disk(EMPTY_DISK_BYTES)
    return b"".join(bytes(file.cluster(number)) for number in range(file.size // CLUSTER))


def _answer(content: Mapping[str, object], exit_code: int = 0) -> ExecResult:
    return ExecResult(exit_code, (json.dumps(content) + "\n").encode(), b"")


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

    async def warm_up(self, address: str, key: str, name: str, *, embeds: bool = False) -> None:
        self._require(address)
        self.warmed.append((address, name))

    def _require(self, address: str) -> None:
        if address in self.silent:
            raise ModelServerUnreachable(f"{address} does not answer")
