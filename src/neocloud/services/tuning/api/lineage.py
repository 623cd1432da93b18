"""LineageService: where a model comes from and what came of it, and which models have seen a file.

A caller sees what it may read with the methods of each kind: everything else is left out, and a notice says
that something is missing. Tokens and cost come from the meters and the ledger, as in the bill.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache

from neocloud.core import contract, wire
from neocloud.core.service import Call, Method
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.neocloud.inference.v1 import Deployment, Model
from neocloud.messages.neocloud.tuning.v1 import (
    FineTuningJob,
    GetLineageRequest,
    Lineage,
    LineageNode,
    TrainingRecord,
)
from neocloud.services.billing.public import Charge, Charges, ResourceCharges
from neocloud.services.billing.types import REPORT_PERMISSION
from neocloud.services.iam.types import CONTAINER, ReadablePlaces, ReadRights, lineage, tenant_of
from neocloud.services.inference.types import (
    DEPLOYMENT,
    FAST_SUFFIX,
    MODEL,
    REPLICA_RESERVATION,
    called_name,
    users_namespace,
)
from neocloud.services.storage.public import SCHEME
from neocloud.services.tuning.render import JOB_LABEL
from neocloud.services.tuning.rules import lineage as rules
from neocloud.services.tuning.rules.lineage import Graph
from neocloud.services.tuning.types import JOB, Files, read_record

SERVICE = "neocloud.tuning.v1.LineageService"
READ_MODELS, READ_JOBS = "inference.models.get", "tuning.fineTuningJobs.get"
READ_DEPLOYMENTS = "inference.deployments.get"
MOST_ANCESTORS = 16
"""Bases of bases that are followed."""
MOST_USERS = 200
"""Adapters and deployments of a model that are shown."""
GetRow = Callable[[str], Resource | None]


@dataclass
class Rights:
    """The places that the caller may read, by permission."""

    places: dict[str, ReadablePlaces]
    get: GetRow

    def may_read(self, permission: str, resource_id: str) -> bool:
        places, path = self.places[permission], list(lineage(resource_id, self.get))
        if not path:
            return False
        return path[0].id in places.ids or any(row.id in places.roots for row in path)


def rights_of(call: Call, tx: Transaction) -> Rights:
    assert call.subject is not None, (
        "The method has a permission, so the server has authenticated the caller."
    )
    permissions = (READ_MODELS, READ_JOBS, READ_DEPLOYMENTS, REPORT_PERMISSION)
    places = call.dependencies.provided.get(ReadRights)(tx, call.subject, permissions)
    return Rights(dict(places), cache(tx.get))


def training_of(tx: Transaction, model: Resource) -> tuple[TrainingRecord | None, bool]:
    """Return what is known of the job that made a model, None of one that was added; and whether a record
    was kept. Jobs of earlier releases kept none."""
    record = read_record(tx, model.id)
    if record is not None:
        return record, True
    job = tx.get(model.labels.get(JOB_LABEL, ""))
    if job is None or job.kind != JOB or job.parent_id != model.parent_id:
        return None, False
    found = wire.message(job, FineTuningJob)
    return (rules.record_of(found), False) if found.status.fine_tuned_model_id == model.id else (None, False)


async def get_lineage(call: Call, request: GetLineageRequest) -> Lineage:
    dependencies = call.dependencies
    found = await dependencies.store.read_long(lambda tx: _Reader(tx, rights_of(call, tx)).read(request.id))
    files = dependencies.provided.find(Files)
    if files is not None:
        await asyncio.to_thread(_mark_deleted, found, files)
    charges = dependencies.provided.find(ResourceCharges)
    if charges is not None:
        await _add_charges(call, found, charges)
    return found.graph.message


@dataclass
class _Picture:
    """A graph without tokens and cost, and what these are computed from."""

    model: Model
    graph: Graph = field(default_factory=Graph)
    files: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """Project and id of uploaded files, by the key of their node."""
    jobs: dict[str, datetime] = field(default_factory=dict[str, datetime])
    """When each job was created, by id."""
    projects: Sequence[str] = ()
    """Projects whose bill the caller may read."""

    @property
    def key(self) -> str:
        return f"model:{self.model.metadata.id}"


class _Reader:
    def __init__(self, tx: Transaction, rights: Rights) -> None:
        self._tx = tx
        self._rights = rights

    def read(self, model_id: str) -> _Picture:
        row = self._rights.get(model_id)
        if row is None or row.kind != MODEL:
            raise contract.not_found("model", model_id)
        found = _Picture(wire.message(row, Model))
        self._add_model(found, row, MOST_ANCESTORS)
        self._add_users(found, row)
        found.projects = self._billed_projects(row)
        if row.parent_id not in found.projects:
            found.graph.note(f"Tokens and cost need the permission {REPORT_PERMISSION}.")
        return found

    def _add_model(self, found: _Picture, row: Resource, depth: int) -> str:
        record, has_record = training_of(self._tx, row)
        model = wire.message(row, Model)
        key = found.graph.add(rules.model_node(model, is_trained=record is not None))
        if record is not None and not self._may_read_job(record, row):
            found.graph.note(f"The training of {row.name} is not shown: that needs {READ_JOBS}.")
            record = None
        if record is not None:
            if has_record and row.id == found.model.metadata.id:
                found.graph.message.record.CopyFrom(record)
            if not has_record:
                found.graph.note(f"{row.name} was made by an earlier release, which recorded less.")
            self._add_training(found, key, row, record)
            self._add_base(
                found, f"job:{record.job_id}", "started from", self._base_id(record), depth, record
            )
        if model.spec.base_model_id:
            self._add_base(found, key, "builds on", model.spec.base_model_id, depth, record)
        return key

    def _may_read_job(self, record: TrainingRecord, model: Resource) -> bool:
        """A job that is gone was in the project of its model."""
        return self._rights.may_read(READ_JOBS, model.parent_id) or self._rights.may_read(
            READ_JOBS, record.job_id
        )

    def _base_id(self, record: TrainingRecord) -> str:
        """Return the whole model that training started from, also where an adapter of it was named."""
        if record.base.id:
            return record.base.id
        row = self._rights.get(record.spec.model_id)
        is_model = row is not None and row.kind == MODEL
        return (wire.message(row, Model).spec.base_model_id or row.id) if row and is_model else ""

    def _add_training(self, found: _Picture, key: str, row: Resource, record: TrainingRecord) -> None:
        graph, job = found.graph, self._rights.get(record.job_id)
        made_by = graph.add(rules.job_node(record, job.state if job is not None else rules.DELETED))
        graph.link(made_by, key, "made by")
        found.jobs[record.job_id] = contract.to_datetime(record.created_at)
        for node, relation in rules.data_nodes(record):
            graph.link(graph.add(node), made_by, relation)
            if not node.id.startswith(SCHEME):
                found.files[node.key] = (row.parent_id, node.id)
        configuration = rules.configuration_node(record)
        if configuration is not None:
            graph.link(graph.add(configuration), made_by, "configured by")
        for node in rules.checkpoint_nodes(record):
            graph.link(made_by, graph.add(node), "saved by")
        evaluation = rules.evaluation_node(record)
        if evaluation is not None:
            graph.link(key, graph.add(evaluation), "of")

    def _add_base(
        self,
        found: _Picture,
        user: str,
        relation: str,
        base_id: str,
        depth: int,
        record: TrainingRecord | None,
    ) -> None:
        row, graph = self._rights.get(base_id), found.graph
        if row is None:
            if record is not None and record.base.id == base_id:
                graph.link(graph.add(rules.deleted_model_node(record)), user, relation)
        elif not self._rights.may_read(READ_MODELS, base_id):
            graph.note("A base model is not shown: it is in a project that you may not read.")
        elif depth == 0:
            graph.note(f"What {row.name} was made of is not shown: there are too many bases.")
        else:
            graph.link(self._add_model(found, row, depth - 1), user, relation)

    def _add_users(self, found: _Picture, row: Resource) -> None:
        """Add the deployments of the model, and the adapters on it."""
        model, graph, hidden = found.model, found.graph, 0
        users = sorted(self._tx.reservations(users_namespace(model.spec.base_model_id or row.id)))
        shown = 0
        for user in filter(None, map(self._rights.get, users)):
            is_adapter = user.kind == MODEL and not model.spec.base_model_id
            is_serving = user.kind == DEPLOYMENT and _serves(wire.message(user, Deployment), model)
            if user.deleted_at is not None or not (is_adapter or is_serving):
                continue
            permission = READ_MODELS if is_adapter else READ_DEPLOYMENTS
            if shown == MOST_USERS or not self._rights.may_read(permission, user.id):
                hidden += 1
                continue
            shown += 1
            if is_adapter:
                record, _ = training_of(self._tx, user)
                node = rules.model_node(wire.message(user, Model), is_trained=record is not None)
            else:
                node = rules.deployment_node(wire.message(user, Deployment))
            graph.link(found.key, graph.add(node), "builds on" if is_adapter else "serves")
        if hidden:
            graph.note(
                f"{hidden} more adapters or deployments use it; you may not read them, or there are too many."
            )

    def _billed_projects(self, row: Resource) -> Sequence[str]:
        tenant_id = tenant_of(row.id, self._rights.get)
        projects = self._tx.list(CONTAINER, parent_id=tenant_id)[0] if tenant_id else ()
        return [each.id for each in projects if self._rights.may_read(REPORT_PERMISSION, each.id)]


def _serves(deployment: Deployment, model: Model) -> bool:
    if deployment.spec.model_id == model.metadata.id:
        return True
    return called_name(model.metadata.name, deployment.spec) in deployment.status.served_names


def _mark_deleted(found: _Picture, files: Files) -> None:
    for node in found.graph.message.nodes:
        project_id, file_id = found.files.get(node.key, ("", ""))
        if not file_id:
            continue
        try:
            files.path(project_id, file_id)
        except LookupError:
            node.state = rules.DELETED


async def _add_charges(call: Call, found: _Picture, charges: ResourceCharges) -> None:
    """Add tokens and cost, as far as the caller may read the bills of the projects that pay."""
    model, graph = found.model, found.graph
    created = contract.to_datetime(model.metadata.created_at)
    if found.jobs:
        first = min(found.jobs.values())
        jobs = await charges(found.projects, kinds=(JOB,), resource_ids=found.jobs, models=(), start=first)
        _note_start(graph, jobs, first)
        for job_id in found.jobs:
            _add_cost(
                graph, f"job:{job_id}", jobs, [each for each in jobs.items if each.resource_id == job_id]
            )
    deployments = [node.id for node in graph.message.nodes if node.type == LineageNode.DEPLOYMENT]
    served = await charges(
        found.projects,
        kinds=(REPLICA_RESERVATION,),
        resource_ids=deployments,
        models=(model.metadata.name, model.metadata.name + FAST_SUFFIX),
        start=created,
    )
    _note_start(graph, served, created)
    for deployment_id in deployments:
        held = [each for each in served.items if each.resource_id == deployment_id and not each.is_counted]
        _add_cost(graph, f"deployment:{deployment_id}", served, held)
    await _add_tokens(call, found, served)


async def _add_tokens(call: Call, found: _Picture, served: Charges) -> None:
    groups: dict[tuple[str, str], list[Charge]] = defaultdict(list)
    for each in served.items:
        if each.is_counted:
            groups[each.resource_id, each.parent_id].append(each)
    if not groups:
        return
    deployments = sorted({deployment_id for deployment_id, _ in groups})
    sources = await call.dependencies.store.read(
        lambda tx: {each: _token_source(call, tx, each) for each in deployments}
    )
    for (deployment_id, project_id), charges in sorted(groups.items()):
        node, graph = sources[deployment_id], found.graph
        source, relation = (graph.add(node), "through") if node is not None else (found.key, "of")
        if node is not None:
            graph.link(found.key, source, "serves")
        tokens = rules.tokens_node(f"{deployment_id}/{project_id}", charges, served.start)
        tokens.facts.append(rules.fact("project", project_id))
        graph.link(source, graph.add(tokens), relation)
        _add_cost(graph, tokens.key, served, charges)


def _token_source(call: Call, tx: Transaction, deployment_id: str) -> LineageNode | None:
    """Return the deployment that tokens went through; None where the caller may not read it."""
    rights = rights_of(call, tx)
    row = rights.get(deployment_id)
    if row is not None and row.kind == DEPLOYMENT:
        may_read = rights.may_read(READ_DEPLOYMENTS, deployment_id)
        return rules.deployment_node(wire.message(row, Deployment)) if may_read else None
    last = tx.last_entry(deployment_id)
    if last is None or not rights.may_read(READ_DEPLOYMENTS, last.parent_id):
        return None
    return rules.deleted_deployment_node(deployment_id, last.name)


def _add_cost(graph: Graph, source: str, charges: Charges, items: Sequence[Charge]) -> None:
    if items:
        node = rules.cost_node(source, items, charges.currency, charges.start)
        graph.link(source, graph.add(node), "of")


def _note_start(graph: Graph, charges: Charges, asked: datetime) -> None:
    if charges.start > asked:
        graph.note(f"Tokens and cost begin at {charges.start:%Y-%m-%d %H:%M} UTC: earlier usage is not kept.")


METHODS = (Method(f"{SERVICE}/GetLineage", get_lineage, READ_MODELS, target=lambda request: request.id),)
