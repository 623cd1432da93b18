"""The graph of a model's lineage: its nodes, their facts, and what was not recorded of them. Pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from google.protobuf.message import Message

from neocloud.core import contract, wire
from neocloud.messages.neocloud.inference.v1 import Deployment, DeploymentSpec, Model
from neocloud.messages.neocloud.tuning.v1 import (
    Evaluation,
    FileDigest,
    FineTuningJob,
    JobDescription,
    Lineage,
    LineageFact,
    LineageNode,
    TrainingRecord,
)
from neocloud.services.billing.public import Charge
from neocloud.services.tuning.rules.methods import method_of

DELETED = "deleted"
MOST_CHECKPOINTS = 100
"""Checkpoints of a job that are shown, the newest."""
DEFAULT_SEED = 42


class Graph:
    """A graph in the making. Nodes and edges are added once, however often they are found."""

    def __init__(self) -> None:
        self.message = Lineage()
        self._nodes = set[str]()
        self._edges = set[tuple[str, str, str]]()

    def add(self, node: LineageNode) -> str:
        """Return the node's key."""
        if node.key not in self._nodes:
            self._nodes.add(node.key)
            self.message.nodes.append(node)
        return node.key

    def link(self, source: str, target: str, relation: str) -> None:
        if (source, target, relation) not in self._edges:
            self._edges.add((source, target, relation))
            self.message.edges.add(source=source, target=target, relation=relation)

    def note(self, text: str) -> None:
        if text not in self.message.notices:
            self.message.notices.append(text)


def fact(name: str, value: object, *, is_reported: bool = False) -> LineageFact:
    return LineageFact(name=name, value=_text(value), is_reported=is_reported)


def model_node(model: Model, *, is_trained: bool) -> LineageNode:
    metadata, status = model.metadata, model.status
    found = LineageNode(
        key=f"model:{metadata.id}",
        type=LineageNode.MODEL,
        id=metadata.id,
        name=metadata.name,
        digest=status.digest,
        created_at=metadata.created_at,
        state=wire.state_of(model),
    )
    _fill(
        found,
        origin="trained" if is_trained else "added",
        source="" if is_trained else _source(model),
        license=model.spec.license,
        architecture=status.architecture,
        parameters=status.parameters,
        lora_rank=status.lora_rank,
    )
    _require(found, digest=status.digest, license=model.spec.license)
    return found


def deleted_model_node(record: TrainingRecord) -> LineageNode:
    """Return the base of a training that is gone, as it was then."""
    base = record.base
    found = LineageNode(
        key=f"model:{base.id}",
        type=LineageNode.MODEL,
        id=base.id,
        name=base.name,
        digest=base.digest,
        state=DELETED,
    )
    _fill(found, license=base.license)
    return found


def record_of(job: FineTuningJob) -> TrainingRecord:
    """Return what is known of a job that an earlier release ran, which kept no record."""
    status = job.status
    return TrainingRecord(
        job_id=job.metadata.id,
        job_name=job.metadata.name,
        spec=job.spec,
        hyperparameters=status.hyperparameters,
        created_at=job.metadata.created_at,
        started_at=status.started_at if status.HasField("started_at") else None,
        finished_at=status.finished_at if status.HasField("finished_at") else None,
        trained_tokens=status.trained_tokens,
        evaluation=status.evaluation if status.HasField("evaluation") else None,
        result_files=status.result_files,
        gate=status.gate if status.HasField("gate") else None,
    )


def job_node(record: TrainingRecord, state: str) -> LineageNode:
    spec, description = record.spec, record.description
    found = LineageNode(
        key=f"job:{record.job_id}",
        type=LineageNode.JOB,
        id=record.job_id,
        name=record.job_name,
        created_at=record.created_at,
        state=state,
    )
    where = f"{spec.platform}, {spec.preset}" if spec.platform else ""
    cluster = f"{spec.slurm_cluster_id}, nodes: {max(1, spec.nodes)}" if spec.slurm_cluster_id else ""
    _fill(
        found,
        ran_on=where or cluster,
        seconds=_seconds(record),
        attempts=record.attempts,
        trained_tokens=record.trained_tokens,
        seed=spec.seed or DEFAULT_SEED,
        method=method_of(spec) if spec.method else "",
        merge=spec.merge or "",
    )
    used = record.hyperparameters
    found.facts.extend(fact(field.name, value) for field, value in used.ListFields())
    _add_reported(found, description)
    _require(
        found,
        attempts=record.attempts,
        recipe=description.recipe_sha256,
        settings=description.settings,
        nodes=description.nodes,
        checkpoints=description.checkpoints,
    )
    return found


def _add_reported(node: LineageNode, description: JobDescription) -> None:
    reported: dict[str, object] = {
        "recipe": description.recipe_sha256,
        **{f"package {name}": version for name, version in sorted(description.packages.items())},
        "nodes": description.nodes,
        "processes": description.processes,
        "threads": description.threads,
        "processor": description.processor,
        "device": description.device,
        **{f"setting {name}": value for name, value in sorted(description.settings.items())},
    }
    node.facts.extend(fact(name, value, is_reported=True) for name, value in reported.items() if value)


def data_nodes(record: TrainingRecord) -> Sequence[tuple[LineageNode, str]]:
    """Return the files of a training, each with the relation to its job."""
    spec, description = record.spec, record.description
    training = _data_node(spec.training_file, record.training_data)
    for name in ("training", "held_out"):
        if name in description.data:
            training.facts.extend(_part_facts(name, description.data[name]))
    if description.held_out:
        training.facts.append(fact("split", description.held_out, is_reported=True))
    if description.held_out == "tenth":
        training.facts.append(fact("split_seed", description.seed, is_reported=True))
    for name, count in sorted(description.left_out.items()):
        training.facts.append(fact(f"left_out {name}", count, is_reported=True))
    _require(training, split=description.held_out)
    found = [(training, "trained on")]
    if spec.validation_file:
        found.append((_data_node(spec.validation_file, record.validation_data), "validated on"))
    return found


def configuration_node(record: TrainingRecord) -> LineageNode | None:
    """Return the configuration that the caller named, with the version of its object; None without one."""
    metadata = record.spec.job_metadata
    source, digest = metadata.get("config", ""), metadata.get("config_sha256", "")
    if not source:
        return None
    found = LineageNode(
        key=f"configuration:{digest or source}", type=LineageNode.CONFIGURATION, name=source, digest=digest
    )
    version = metadata.get("config_version", "")
    if version:
        found.facts.append(fact("version", version, is_reported=True))
    _require(found, digest=digest, version=version)
    return found


def _data_node(name: str, digest: FileDigest) -> LineageNode:
    found = LineageNode(
        key=f"data:{digest.sha256 or name}",
        type=LineageNode.DATA_SET,
        id=name,
        name=name,
        digest=digest.sha256,
    )
    _fill(found, size_bytes=digest.size_bytes, rows=digest.rows)
    _require(found, digest=digest.sha256)
    return found


def _part_facts(name: str, part: FileDigest) -> Iterable[LineageFact]:
    for key, value in (("rows", part.rows), ("sha256", part.sha256)):
        if value:
            yield fact(f"{name} {key}", value, is_reported=True)


def checkpoint_nodes(record: TrainingRecord) -> Sequence[LineageNode]:
    found: list[LineageNode] = []
    for each in list(record.description.checkpoints)[-MOST_CHECKPOINTS:]:
        node = LineageNode(
            key=f"checkpoint:{record.job_id}/{each.step}",
            type=LineageNode.CHECKPOINT,
            name=f"checkpoint-{each.step:06d}",
            created_at=each.created_at,
            state="kept" if each.is_kept else "removed",
        )
        node.facts.append(fact("step", each.step, is_reported=True))
        if each.HasField("valid_loss"):
            node.facts.append(fact("valid_loss", f"{each.valid_loss:.4f}", is_reported=True))
        found.append(node)
    return found


def evaluation_node(record: TrainingRecord) -> LineageNode | None:
    """Return the evaluation that the job ended with; None where there was none."""
    if not record.HasField("evaluation"):
        return None
    evaluation = record.evaluation
    found = LineageNode(
        key=f"evaluation:{record.job_id}",
        type=LineageNode.EVALUATION,
        id=record.result_files[-1] if record.result_files else "",
        name="held-out conversations",
        created_at=record.finished_at if record.HasField("finished_at") else None,
    )
    figures = {
        **_measured(evaluation),
        "conversations": evaluation.conversations,
    }
    found.facts.extend(fact(name, value, is_reported=True) for name, value in figures.items())
    if record.HasField("gate"):
        found.facts.append(fact("gate", "passed" if record.gate.passed else "failed"))
        for each in record.gate.rules:
            found.facts.append(fact(f"gate {each.asked}", each.measured, is_reported=True))
    return found


def _measured(evaluation: Evaluation) -> dict[str, str]:
    if evaluation.HasField("base_reward"):
        return {
            "base_reward": f"{evaluation.base_reward:.4f}",
            "fine_tuned_reward": f"{evaluation.fine_tuned_reward:.4f}",
        }
    return {
        "base_perplexity": f"{evaluation.base_perplexity:.4f}",
        "fine_tuned_perplexity": f"{evaluation.fine_tuned_perplexity:.4f}",
        "perplexity_improvement": f"{evaluation.perplexity_improvement:.1f} %",
    }


def deployment_node(deployment: Deployment) -> LineageNode:
    metadata, spec = deployment.metadata, deployment.spec
    found = LineageNode(
        key=f"deployment:{metadata.id}",
        type=LineageNode.DEPLOYMENT,
        id=metadata.id,
        name=metadata.name,
        created_at=metadata.created_at,
        state=wire.state_of(deployment),
    )
    where = f"{spec.platform}, {spec.preset}" if spec.platform else spec.slurm_cluster_id
    _fill(found, runs_on=where, charge=DeploymentSpec.Charge.Name(spec.charge))
    return found


def deleted_deployment_node(deployment_id: str, name: str) -> LineageNode:
    return LineageNode(
        key=f"deployment:{deployment_id}",
        type=LineageNode.DEPLOYMENT,
        id=deployment_id,
        name=name,
        state=DELETED,
    )


def tokens_node(key: str, charges: Iterable[Charge], since: datetime) -> LineageNode:
    found = LineageNode(key=f"tokens:{key}", type=LineageNode.TOKENS, created_at=contract.timestamp(since))
    for each in charges:
        kind = each.sku.rpartition(".")[2]
        found.facts.append(fact(kind, f"{each.quantity:f} {each.unit}"))
    return found


def cost_node(key: str, charges: Sequence[Charge], currency: str, since: datetime) -> LineageNode:
    found = LineageNode(key=f"cost:{key}", type=LineageNode.COST, created_at=contract.timestamp(since))
    priced = [each.cost for each in charges if each.cost is not None]
    found.facts.append(fact("total", f"{sum(priced):f} {currency}"))
    found.facts.extend(fact(each.sku, f"{each.cost:f}") for each in charges if each.cost is not None)
    unpriced = [each.sku for each in charges if each.cost is None]
    if unpriced:
        found.facts.append(fact("without a price", ", ".join(unpriced)))
    return found


def _source(model: Model) -> str:
    source = model.spec.source
    kind = source.WhichOneof("source")
    if kind == "hub":
        return f"hub {source.hub.id} {source.hub.revision}".strip()
    if kind == "object":
        return f"s3://{source.object.bucket}/{source.object.prefix}"
    return source.artifact.name if kind == "artifact" else "folder"


def _seconds(record: TrainingRecord) -> int:
    if not record.HasField("started_at") or not record.HasField("finished_at"):
        return 0
    return max(0, record.finished_at.seconds - record.started_at.seconds)


def _fill(node: LineageNode, **facts: object) -> None:
    """Add the facts that are known."""
    node.facts.extend(fact(name, value) for name, value in facts.items() if value)


def _require(node: LineageNode, **facts: object) -> None:
    """Say of those that are unknown that they were not recorded."""
    node.not_recorded.extend(name for name, value in facts.items() if not value)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Message):
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)
