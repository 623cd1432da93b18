"""The rules of a deployment: a whole model of the tenant, hardware that holds it, consistent numbers; and of
the budget that its requests are paid from, which the gateway enforces.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader, ServiceRegistry
from neocloud.core.store.protocol import Resource
from neocloud.core.usage import CapacityUse, Rows
from neocloud.messages.neocloud.inference.v1 import (
    Budget,
    BudgetStatus,
    Deployment,
    DeploymentSpec,
    ModelSpec,
    ModelStatus,
    ReplicaReservationSpec,
)
from neocloud.messages.neocloud.slurm.v1 import ClusterSpec
from neocloud.services.compute.public import Demand, check_capacity, preset, preset_violations
from neocloud.services.inference.public import MonthlySpending
from neocloud.services.inference.rules.memory import GIB, deployment_plan, shape_of
from neocloud.services.inference.rules.model import tenant_of
from neocloud.services.inference.rules.task import possible_tasks
from neocloud.services.inference.types import (
    DEPLOYMENT,
    MODEL,
    REPLICA_RESERVATION,
    ModelState,
    flavours_namespace,
    generates,
    has_fewer_bits,
    is_withheld,
    task_name,
    users_namespace,
)
from neocloud.services.slurm.types import worker_names

_WORDS = {"GENERATE": "generate text", "EMBED": "embed text", "RERANK": "rank documents by reading them"}
SLURM_CLUSTER = "neocloud.slurm.v1.Cluster"
IDLE_SECONDS = 15 * 60
ROOM = 1.1
"""The size of a folder in memory, as a multiple of the weights that are copied to it, is more than this."""


class DeploymentRules(Rules[Deployment]):
    def defaults(self, resource: Deployment) -> None:
        scaling = resource.spec.scaling
        scaling.max_replicas = scaling.max_replicas or max(1, scaling.min_replicas)
        scaling.idle_seconds = scaling.idle_seconds or IDLE_SECONDS

    def quota_demand(self, resource: Deployment) -> Mapping[str, int]:
        """Count as many replicas as there may be in pods; those in a cluster use the cluster's quota."""
        demand = Counter({"inference.deployment.count": 1})
        for shape, replicas in replica_demand(resource.spec, resource.spec.scaling.max_replicas):
            demand["inference.replica.count"] += replicas
            demand[f"compute.instance.gpu.{shape.gpu_type or 'any'}"] += replicas * shape.gpus
        return {name: amount for name, amount in demand.items() if amount}

    def violations(
        self, new: Deployment, old: Deployment | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        found = [*_scaling_violations(new.spec), *_shape_violations(new, reader)]
        model = _model(new, reader)
        if old is None:
            found += [*_model_violations(new, model, reader), *_task_violations(new, model, reader)]
        found += _weights_violations(new.spec)
        if not found and model is not None:
            found += _memory_violations(new, model, reader)
        if not found:
            self._check_capacity(new, old, reader)
        return found

    def complete(self, new: Deployment, old: Deployment | None, reader: ResourceReader) -> None:
        """Reserve the flavour of the model, which only one deployment serves, and register with the model."""
        if old is not None:
            return
        model_id, own_id = new.spec.model_id, new.metadata.id
        flavour = DeploymentSpec.Flavour.Name(new.spec.flavour)
        if not reader.reserve(flavours_namespace(model_id), flavour, own_id):
            raise contract.already_exists("deployment", flavour)
        reader.reserve(users_namespace(model_id), own_id, own_id)

    def dependents(self, resource: Deployment) -> Iterable[str]:
        """The model shows its deployments."""
        yield resource.spec.model_id

    def _check_capacity(self, new: Deployment, old: Deployment | None, reader: ResourceReader) -> None:
        """Require capacity for at least one replica. Those that scaling adds are checked when they start."""
        scaling = new.spec.scaling
        held = replica_demand(old.spec, old.spec.scaling.min_replicas) if old else []
        demand = replica_demand(new.spec, scaling.min_replicas if old else max(1, scaling.min_replicas))
        is_held = scaling.min_replicas > 0  # nothing is stopped for replicas that may never start
        check_capacity(reader, new.metadata, demand, held, may_wait=is_held, may_preempt=is_held)


def replica_demand(spec: DeploymentSpec, replicas: int) -> list[Demand]:
    """Return what this many replicas hold of this machine: nothing where they are jobs of a cluster."""
    if spec.slurm_cluster_id or not replicas or not spec.platform:
        return []
    return [(preset(spec.platform, spec.preset), replicas)]


def _held(rows: Rows) -> Iterable[tuple[str, Demand]]:
    """A deployment holds its minimum of replicas always, and further ones while they have reservations."""
    reserved = Counter(
        ReplicaReservationSpec.FromString(row.spec).deployment_id for row in rows[REPLICA_RESERVATION]
    )
    for row in rows[DEPLOYMENT]:
        spec = DeploymentSpec.FromString(row.spec)
        replicas = max(spec.scaling.min_replicas, reserved[row.id])
        if spec.platform and replicas:
            yield row.id, (preset(spec.platform, spec.preset), replicas)


CAPACITY = (CapacityUse((DEPLOYMENT, REPLICA_RESERVATION), _held),)


def _model(new: Deployment, reader: ResourceReader) -> Resource | None:
    row = reader.get(new.spec.model_id)
    tenant = tenant_of(new.metadata.parent_id, reader)
    is_ours = row is not None and row.kind == MODEL and tenant_of(row.parent_id, reader) == tenant
    return row if is_ours and row is not None and row.deleted_at is None else None


def _model_violations(new: Deployment, model: Resource | None, reader: ResourceReader) -> Iterable[Violation]:
    if model is None:
        yield Violation(
            "spec.model_id", f'there is no model "{new.spec.model_id}"; `neo model list` shows them'
        )
        return
    base_id = ModelSpec.FromString(model.spec).base_model_id
    if base_id:
        yield Violation(
            "spec.model_id",
            f"{model.name} is an adapter: it is served by every deployment of its base {base_id} that has"
            " max_adapters; deploy that one",
        )
    elif is_withheld(ModelSpec.FromString(model.spec)):
        yield Violation(
            "spec.model_id",
            f"{model.name} failed the gate of its fine-tuning job; train a better one, or ask for an override"
            f" (`neo model override-gate {model.name}`)",
        )
    elif model.state != ModelState.READY:
        yield Violation("spec.model_id", f"{model.name} is {model.state}, not READY; wait, or fix it first")
    flavour = DeploymentSpec.Flavour.Name(new.spec.flavour)
    holder = reader.reservations(flavours_namespace(model.id)).get(flavour, "")
    if holder not in ("", new.metadata.id):
        yield Violation(
            "spec.flavour", f"{holder} serves {model.name} in the {flavour} flavour already; change that one"
        )


def _task_violations(new: Deployment, model: Resource | None, reader: ResourceReader) -> Iterable[Violation]:
    """All deployments of a model have one task, so that its name always returns vectors, or always text."""
    if not generates(new.spec) and new.spec.max_adapters:
        yield Violation("spec.max_adapters", "must be 0: adapters are not served for embeddings and rankings")
    if model is None:
        return
    status = ModelStatus.FromString(model.status)
    possible = possible_tasks(status)
    if task_name(new.spec) not in possible:
        yield Violation(
            "spec.task",
            f"must be {' or '.join(possible)}: {model.name} is a {status.architecture}, which cannot"
            f" {_WORDS[task_name(new.spec)]}",
        )
    for holder in reader.reservations(flavours_namespace(model.id)).values():
        row = reader.get(holder)
        if row is not None and row.kind == DEPLOYMENT:
            task = DeploymentSpec.FromString(row.spec).task
            if task != new.spec.task:
                yield Violation(
                    "spec.task",
                    f"must be {DeploymentSpec.Task.Name(task)}, like that of {row.name}, which also serves"
                    f" {model.name}; for both tasks add the model a second time, with another name",
                )
                return


def _weights_violations(spec: DeploymentSpec) -> Iterable[Violation]:
    if not has_fewer_bits(spec):
        if spec.accept_lower_quality:
            yield Violation("spec.accept_lower_quality", "is for weights of fewer bits; set `weights`, too")
        return
    if spec.slurm_cluster_id:
        yield Violation(
            "spec.weights",
            "must be ORIGINAL on a Slurm cluster; add a model whose weights have fewer bits"
            " (recipes/quantize.py makes one)",
        )
    if not generates(spec):
        yield Violation(
            "spec.weights", "must be ORIGINAL: their quality is compared by text that is generated"
        )


def _scaling_violations(spec: DeploymentSpec) -> Iterable[Violation]:
    scaling = spec.scaling
    if scaling.max_replicas < scaling.min_replicas:
        yield Violation(
            "spec.scaling.max_replicas",
            f"is {scaling.max_replicas}, fewer than min_replicas, which is {scaling.min_replicas}",
        )


def _shape_violations(new: Deployment, reader: ResourceReader) -> Iterable[Violation]:
    spec = new.spec
    if spec.slurm_cluster_id:
        row = reader.get(spec.slurm_cluster_id)
        if row is None or row.kind != SLURM_CLUSTER or row.parent_id != new.metadata.parent_id:
            yield Violation(
                "spec.slurm_cluster_id",
                "is not a cluster of this project; `neo slurm cluster list` shows them",
            )
        elif row.deleted_at is not None:
            yield Violation("spec.slurm_cluster_id", f"{row.name} is being deleted; choose another")
        else:
            yield from _worker_violations(spec.slurm_resources.worker, row)
            yield from _in_memory_violations(new, row, reader)
        if spec.platform or spec.preset:
            yield Violation("spec.platform", "must be empty on a Slurm cluster; set slurm_resources instead")
        return
    if spec.weights_in_memory:
        yield Violation(
            "spec.weights_in_memory", "is for a Slurm cluster whose workers have a submount in memory"
        )
    if spec.HasField("slurm_resources"):
        yield Violation(
            "spec.slurm_resources", "is for deployments on a Slurm cluster; set platform and preset"
        )
    if not spec.platform:
        yield Violation(
            "spec.platform",
            "is required, with a preset, e.g. cpu-local and 2vcpu-8gb, or gpu-local and"
            " 1gpu-8vcpu-64gb; `neo compute platform list` shows them",
        )
    else:
        yield from preset_violations(spec.platform, spec.preset, "spec")


def _worker_violations(worker: str, cluster: Resource) -> Iterable[Violation]:
    names = worker_names(ClusterSpec.FromString(cluster.spec))
    if worker and worker not in names:
        sets = [
            [name for name, each in names.items() if each == node_set] for node_set in set(names.values())
        ]
        there = ", ".join(sorted(f"{each[0]} to {each[-1]}" if each[1:] else each[0] for each in sets))
        yield Violation(
            "spec.slurm_resources.worker", f"{cluster.name} has no {worker}; it has {there or 'no workers'}"
        )


def folder_in_memory(cluster: ClusterSpec, size_bytes: int) -> str:
    """Return the submount in memory that has room for weights of this size; "" where there is none."""
    fitting = [
        each for each in cluster.submounts if each.in_memory and each.size_gibibytes * GIB > ROOM * size_bytes
    ]
    return max(fitting, key=lambda each: each.size_gibibytes).mount_path if fitting else ""


def _in_memory_violations(new: Deployment, cluster: Resource, reader: ResourceReader) -> Iterable[Violation]:
    if not new.spec.weights_in_memory:
        return
    model = _model(new, reader)
    size = ModelStatus.FromString(model.status).size_bytes if model is not None else 0
    if not folder_in_memory(ClusterSpec.FromString(cluster.spec), size):
        yield Violation(
            "spec.weights_in_memory",
            f"needs a submount in memory of more than {ROOM * size / GIB:.1f} GiB, which {cluster.name}"
            " lacks; add one to its spec (submounts: mount_path, size_gibibytes, in_memory)",
        )


def _memory_violations(new: Deployment, model: Resource, reader: ResourceReader) -> Iterable[Violation]:
    status = ModelStatus.FromString(model.status)
    context_length = new.spec.context_length
    if context_length > status.context_length > 0:
        yield Violation(
            "spec.context_length",
            f"is {context_length}; {model.name} supports at most {status.context_length}",
        )
        return
    shape = shape_of(new.spec, reader.inventory)
    if shape is None or not status.size_bytes:
        return
    plan = deployment_plan(new.spec, status, shape)
    if not plan.fits:
        yield Violation(
            "spec.preset" if new.spec.platform else "spec.slurm_resources",
            f"does not hold {model.name}: {plan.sentence}. Choose a larger one, or a smaller context_length.",
        )


BudgetState = BudgetStatus.State


class BudgetRules(Rules[Budget]):
    def defaults(self, resource: Budget) -> None:
        resource.status.state = BudgetState.Value("ACTIVE")

    def quota_demand(self, resource: Budget) -> Mapping[str, int]:
        return {"inference.budget.count": 1}

    def violations(self, new: Budget, old: Budget | None, reader: ResourceReader) -> Iterable[Violation]:
        """A limit of 0 is legal: it stops all requests that cost something."""
        if old is None and not new.metadata.name:
            yield Violation("metadata.name", "is required: a budget is changed and deleted by its name")


def budget_view(budget: Budget, now: datetime, provided: ServiceRegistry) -> None:
    """Set what was spent of the budget in this month, from the gateway's ledger."""
    spending = provided.find(MonthlySpending)
    spent = spending(budget.metadata.parent_id, now) if spending else Decimal(0)
    budget.status.spent = f"{spent:f}"
