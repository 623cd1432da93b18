"""The routing table of the gateway: names, replicas, limits and prices. Read in one transaction."""

import hashlib
from collections.abc import Callable, Mapping

from neocloud.core import wire
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.neocloud.inference.v1 import (
    Deployment,
    DeploymentSpec,
    FileBucket,
    ListRoutesResponse,
    Model,
    Replica,
    Route,
)
from neocloud.services.billing.types import TokenTerms
from neocloud.services.inference.api.releases import add_releases
from neocloud.services.inference.types import (
    BUDGET,
    DEPLOYMENT,
    FILE_BUCKET,
    MODEL,
    RELEASE,
    SERVER_KEY,
    ModelState,
    called_name,
    is_withheld,
)

TOKENS_PER_MINUTE = 200_000
"""The limit where neither the deployment nor the price list has another (AIS-08)."""

TermsOf = Callable[[str], TokenTerms]
"""Returns the terms of a model, by its name as clients call it."""


def read_routes(tx: Transaction, terms: TermsOf) -> ListRoutesResponse:
    """Return all live deployments, budgets and file buckets; the version is a digest of them."""
    answer = ListRoutesResponse()
    models: dict[str, Model] = {
        row.id: wire.resource_message(row) for row in tx.list(MODEL)[0] if row.deleted_at is None
    }
    for row in _live(tx, DEPLOYMENT):
        deployment: Deployment = wire.resource_message(row)
        if deployment.spec.model_id in models:
            answer.routes.append(_route(tx, deployment, models, terms))
    for row in _live(tx, BUDGET):
        limit = wire.resource_message(row).spec.monthly_limit
        answer.budgets.add(project_id=row.parent_id, monthly_limit=limit)
    for row in _live(tx, FILE_BUCKET):
        found: FileBucket = wire.resource_message(row)
        answer.file_buckets.add(
            project_id=row.parent_id, bucket_id=found.status.bucket_id, bucket=found.spec.bucket
        )
    add_releases(tx, answer, _live(tx, RELEASE), models)
    answer.version = hashlib.sha256(answer.SerializeToString(deterministic=True)).hexdigest()[:32]
    return answer


def _live(tx: Transaction, kind: str) -> list[Resource]:
    rows = (row for row in tx.list(kind)[0] if row.deleted_at is None)
    return sorted(rows, key=lambda row: row.id)


def _route(tx: Transaction, deployment: Deployment, models: Mapping[str, Model], terms: TermsOf) -> Route:
    metadata, spec, status = deployment.metadata, deployment.spec, deployment.status
    base = models[spec.model_id]
    project = tx.get(metadata.parent_id)
    key = tx.secret(metadata.id, SERVER_KEY)
    route = Route(
        deployment_id=metadata.id,
        tenant_id=project.parent_id if project else "",
        project_id=metadata.parent_id,
        state=status.state,
        context_length=status.context_length or base.status.context_length,
        charge=spec.charge,
        engine_key=key.decode() if key else "",
        start_seconds=status.start_seconds,
        task=spec.task,
        replicas_must_prove=bool(spec.slurm_cluster_id),
        hides_tools=base.status.hides_tools and not base.spec.tool_call_parser,
    )
    _set_terms(route, spec, terms(called_name(base.metadata.name, spec)))
    _add_models(route, deployment, base, models)
    for replica in status.replicas:
        route.replicas.add(
            name=replica.name,
            address=replica.address,
            is_ready=replica.state == Replica.READY and bool(replica.address),
            adapters=replica.adapters,
            adapter_errors=replica.adapter_errors,
        )
    return route


def _add_models(route: Route, deployment: Deployment, base: Model, models: Mapping[str, Model]) -> None:
    """Add the model itself, then the adapters on it that the deployment reports as served."""
    spec = deployment.spec
    name = called_name(base.metadata.name, spec)
    _add_model(route, name, base, parent_name="")
    served = set(deployment.status.served_names)
    for model in models.values():
        called = called_name(model.metadata.name, spec)
        is_adapter = model.spec.base_model_id == base.metadata.id
        is_ready = wire.state_of(model) == ModelState.READY
        is_ready = is_ready and not is_withheld(model.spec)
        is_served = called in served or (spec.max_adapters > 0 and not served)
        if is_adapter and is_ready and is_served:
            _add_model(route, called, model, parent_name=name)


def _add_model(route: Route, name: str, model: Model, *, parent_name: str) -> None:
    route.models.add(
        name=name,
        engine_name=name,
        model_id=model.metadata.id,
        project_id=model.metadata.parent_id,
        parent_name=parent_name,
        license=model.spec.license,
        created_at=model.metadata.created_at,
    )


def _set_terms(route: Route, spec: DeploymentSpec, listed: TokenTerms) -> None:
    """Fill in from the price list what the spec leaves open. A spec with any price is not mixed with it."""
    limits, price = spec.limits, spec.price
    route.limits.requests_per_minute = limits.requests_per_minute or listed.requests_per_minute
    route.limits.tokens_per_minute = limits.tokens_per_minute or listed.tokens_per_minute or TOKENS_PER_MINUTE
    source = price if price.input or price.output else listed
    route.price.input = source.input
    route.price.cached_input = source.cached_input
    route.price.output = source.output
