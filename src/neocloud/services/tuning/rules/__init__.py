"""Validation rules of a fine-tuning job: its model, files and hyperparameters, and where it runs. Pure."""

from collections.abc import Iterable, Mapping

from neocloud.core import contract
from neocloud.core.evaluation_gate import JOB_METRICS, BadGate, Gate, parse_gate
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.group_commit import refuse_while_writing
from neocloud.core.store.protocol import Resource
from neocloud.core.usage import CapacityUse, Rows
from neocloud.messages.neocloud.inference.v1 import ModelSpec, ModelStatus
from neocloud.messages.neocloud.slurm.v1 import ClusterSpec
from neocloud.messages.neocloud.tuning.v1 import (
    CreateFineTuningJobRequest,
    FineTuningJob,
    FineTuningJobSpec,
    FineTuningJobStatus,
)
from neocloud.services.compute.public import Demand, Preset, check_capacity, preset, preset_violations
from neocloud.services.inference.types import MODEL, ModelState
from neocloud.services.slurm.types import CLUSTER
from neocloud.services.storage.public import SCHEME, ObjectReads, ObjectWrites, place_in
from neocloud.services.tuning.rules.memory import Nodes, choose_shape, fit_on, nodes_of
from neocloud.services.tuning.rules.methods import (
    grader_problem,
    makes_whole_model,
    method_of,
    method_violations,
)
from neocloud.services.tuning.rules.output import output_folder
from neocloud.services.tuning.types import JOB, WORKING, Files, JobState

MAX_URL_BYTES = 1100
"""The longest URL of an object: the longest names of a bucket and of a key."""
LARGEST_SERVED_RANK = 64
"""The largest rank of an adapter that deployments serve; see services/inference."""


def _held(rows: Rows) -> Iterable[tuple[str, Demand]]:
    for row in rows[JOB]:
        shape = shape_of(FineTuningJobSpec.FromString(row.spec))
        if shape is not None and row.state in WORKING:
            yield row.id, (shape, 1)


CAPACITY = (CapacityUse((JOB,), _held),)


class FineTuningJobRules(Rules[FineTuningJob]):
    def quota_demand(self, resource: FineTuningJob) -> Mapping[str, int]:
        demand = {"tuning.job.count": 1}
        if shape := shape_of(resource.spec):
            demand[f"compute.instance.gpu.{shape.gpu_type or 'any'}"] = shape.gpus
        return demand

    def request_violations(self, request: CreateFineTuningJobRequest) -> Iterable[Violation]:
        if request.spec.gate:
            try:
                gate_of(request.spec)
            except BadGate as error:
                yield Violation("spec.gate", str(error))
        if problem := grader_problem(request.spec):
            yield Violation("spec.grader", problem)

    def violations(
        self, new: FineTuningJob, old: FineTuningJob | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        if old is not None:
            return []
        set_shape(new, reader)
        where = list(shape_violations(new, reader))
        shape = None if where else shape_of(new.spec)
        node = None if where or shape else cluster_nodes(new.spec, reader).shape
        found = [
            *_hyperparameter_violations(new.spec),
            *method_violations(new.spec),
            *where,
            *model_violations(new, shape or node, reader),
            *_output_violations(new, reader),
        ]
        if shape and not found:  # before the files, which need not be there when a request is tried
            check_capacity(reader, new.metadata, [(shape, 1)], [], may_wait=True, may_preempt=True)
        return [*found, *_file_violations(new, reader)]

    def complete(self, new: FineTuningJob, old: FineTuningJob | None, reader: ResourceReader) -> None:
        if old is None:
            new.status.state = FineTuningJobStatus.State.Value(JobState.VALIDATING_FILES)


def gate_of(spec: FineTuningJobSpec) -> Gate | None:
    """Return the gate of a job. Raises BadGate. Not for a transaction."""
    refuse_while_writing("Parsing a gate")
    return parse_gate(spec.gate, JOB_METRICS) if spec.gate else None


def shape_of(spec: FineTuningJobSpec) -> Preset | None:
    """Return what a job holds of this machine; None on a Slurm cluster, whose nodes hold theirs already."""
    return preset(spec.platform, spec.preset) if spec.platform else None


def cluster_nodes(spec: FineTuningJobSpec, reader: ResourceReader) -> Nodes:
    row = reader.get(spec.slurm_cluster_id)
    assert row is not None
    return nodes_of(ClusterSpec.FromString(row.spec))


def set_shape(new: FineTuningJob, reader: ResourceReader) -> None:
    """Store a shape in the spec when it names none, as clients of the OpenAI API cannot name one."""
    spec = new.spec
    row = reader.get(spec.model_id)
    base = base_of(row, reader) if row is not None and row.kind == MODEL else None
    if base is None or spec.platform or spec.preset or spec.slurm_cluster_id:
        return
    status = ModelStatus.FromString(base.status)
    shape = choose_shape(spec.hyperparameters, status, reader.inventory, method_of(spec))
    if shape is not None:
        spec.platform, spec.preset = shape.platform, shape.name


def base_of(row: Resource, reader: ResourceReader) -> Resource | None:
    """Return the model that training starts from: the model itself, or the base model of an adapter."""
    base_id = ModelSpec.FromString(row.spec).base_model_id
    return reader.get(base_id) if base_id else row


def _hyperparameter_violations(spec: FineTuningJobSpec) -> Iterable[Violation]:
    requested, field = spec.hyperparameters, "spec.hyperparameters"
    if requested.lora_r > LARGEST_SERVED_RANK and not makes_whole_model(spec):
        yield Violation(
            f"{field}.lora_r",
            f"adapters of a rank above {LARGEST_SERVED_RANK} are not served; use a lower rank, or set"
            " spec.merge",
        )
    if requested.HasField("learning_rate") and requested.HasField("learning_rate_multiplier"):
        yield Violation(
            f"{field}.learning_rate_multiplier", "multiplies the automatic rate; give it or learning_rate"
        )


def shape_violations(new: FineTuningJob, reader: ResourceReader) -> Iterable[Violation]:
    spec = new.spec
    if spec.slurm_cluster_id:
        yield from _cluster_violations(new, reader)
        return
    if spec.nodes > 1:
        yield Violation("spec.nodes", "a job runs in one pod on one node; leave it out")
    if not spec.platform and not spec.preset:
        yield Violation(
            "spec.platform",
            "no shape of this machine was found that the job fits on; give platform and preset"
            " (`neo compute platform list`)",
        )
        return
    yield from preset_violations(spec.platform, spec.preset, "spec")


def _cluster_violations(new: FineTuningJob, reader: ResourceReader) -> Iterable[Violation]:
    spec = new.spec
    row = reader.get(spec.slurm_cluster_id)
    if row is None or row.kind != CLUSTER or row.parent_id != new.metadata.parent_id:
        yield Violation(
            "spec.slurm_cluster_id", "is not a cluster of this project; `neo slurm cluster list` shows them"
        )
        return
    if row.deleted_at is not None:
        yield Violation("spec.slurm_cluster_id", f"{row.name} is being deleted; choose another")
    if spec.platform or spec.preset:
        yield Violation("spec.platform", "is the cluster's own; leave platform and preset out")
    nodes = cluster_nodes(spec, reader)
    if spec.nodes > nodes.count:
        kind = "nodes with GPUs" if nodes.shape.gpus else "nodes"
        yield Violation("spec.nodes", f"{row.name} has {nodes.count} {kind}; use fewer, or scale it up")


def model_violations(new: FineTuningJob, shape: Preset | None, reader: ResourceReader) -> Iterable[Violation]:
    row = reader.get(new.spec.model_id)
    if row is None or row.kind != MODEL or row.deleted_at or not _same_tenant(row, new, reader):
        yield Violation(
            "spec.model_id", f'there is no model "{new.spec.model_id}"; `neo model list` shows them'
        )
        return
    base = base_of(row, reader)
    if base is None or row.state != ModelState.READY or base.state != ModelState.READY:
        yield Violation("spec.model_id", f"{row.name} is {row.state}, not READY; wait, or fix it first")
        return
    status = ModelStatus.FromString(base.status)
    if not status.has_chat_template:
        yield Violation(
            "spec.model_id",
            f"{base.name} has no chat template to format conversations with; use a chat model",
        )
    limit, requested = status.context_length, new.spec.hyperparameters
    if limit and requested.context_length > limit:
        yield Violation(
            "spec.hyperparameters.context_length", f"the model was made for {limit:,} tokens at most"
        )
    if shape is not None:
        yield from _memory_violations(new.spec, status, shape)


def _memory_violations(spec: FineTuningJobSpec, base: ModelStatus, shape: Preset) -> Iterable[Violation]:
    found = fit_on(spec.hyperparameters, base, shape, method_of(spec))
    if not found.fits:
        yield Violation("spec.preset", f"it does not fit: {found.sentence}; use a larger preset")


def _file_violations(new: FineTuningJob, reader: ResourceReader) -> Iterable[Violation]:
    files = reader.provided.find(Files)
    for name in ("training_file", "validation_file"):
        file_id: str = getattr(new.spec, name)
        if not file_id:
            continue
        if file_id.startswith(SCHEME):
            yield from _object_violations(new, name, file_id, reader)
            continue
        if files is None:
            raise contract.bad_state(
                new.metadata.id,
                "This cloud keeps no files: its gateway does not run. Name an object of a bucket, s3://...",
            )
        try:
            files.path(new.metadata.parent_id, file_id)
        except LookupError:
            yield Violation(
                f"spec.{name}", f'there is no file "{file_id}" in this project; POST /v1/files uploads one'
            )


def _object_violations(
    new: FineTuningJob, name: str, url: str, reader: ResourceReader
) -> Iterable[Violation]:
    """Raises ApiError unless the caller may read the object."""
    place = place_in(url)
    if place is None or place.key.endswith("/") or len(url.encode()) > MAX_URL_BYTES:
        yield Violation(f"spec.{name}", f'"{url[:80]}" is not the URL of an object: s3://BUCKET/KEY')
        return
    reads = reader.provided.get(ObjectReads)
    reader.write(lambda tx: reads.allow(tx, reader.subject, new.metadata, place))


def _output_violations(new: FineTuningJob, reader: ResourceReader) -> Iterable[Violation]:
    """Raises ApiError unless the caller may write there."""
    if not new.spec.output:
        return
    folder = output_folder(new.spec.output, new.metadata.id)
    if folder is None:
        yield Violation(
            "spec.output", f'"{new.spec.output[:80]}" is not the URL of a folder: s3://BUCKET[/PREFIX]'
        )
        return
    writes = reader.provided.get(ObjectWrites)
    reader.write(lambda tx: writes.allow(tx, reader.subject, new.metadata, folder))


def _same_tenant(model: Resource, new: FineTuningJob, reader: ResourceReader) -> bool:
    project, other = reader.get(new.metadata.parent_id), reader.get(model.parent_id)
    return bool(project and other and project.parent_id == other.parent_id)
