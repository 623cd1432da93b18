"""The routing table: which name leads where, under which limits and prices. Read in one transaction."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from neocloud.core import wire
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.neocloud.inference.v1 import ListRoutesResponse, Replica, Route
from neocloud.services.billing.resources import TokenTerms
from neocloud.services.inference.types import (
    BUDGET,
    DEPLOYMENT,
    MODEL,
    SERVER_KEY,
    ModelState,
    called_name,
)

TOKENS_PER_MINUTE = 200_000
"""Where neither the deployment nor the price list says another limit (AIS-08)."""

TermsOf = Callable[[str], TokenTerms]
"""By a model's name as clients call it."""


def read_routes(tx: Transaction, terms: TermsOf) -> Any:
    """All deployments that are not being deleted, and all budgets. The version is of what is in it."""
    answer = ListRoutesResponse()
    models = {row.id: wire.resource_message(row) for row in tx.list(MODEL)[0] if row.deleted_at is None}
    for row in _living(tx, DEPLOYMENT):
        deployment = wire.resource_message(row)
        if deployment.spec.model_id in models:
            answer.routes.append(_route(tx, deployment, models, terms))
    for row in _living(tx, BUDGET):
        limit = wire.resource_message(row).spec.monthly_limit
        answer.budgets.add(project_id=row.parent_id, monthly_limit=limit)
    answer.version = hashlib.sha256(answer.SerializeToString(deterministic=True)).hexdigest()[:32]
    return answer


def _living(tx: Transaction, kind: str) -> list[Resource]:
    rows = (row for row in tx.list(kind)[0] if row.deleted_at is None)
    return sorted(rows, key=lambda row: row.id)


def _route(tx: Transaction, deployment: Any, models: Mapping[str, Any], terms: TermsOf) -> Any:
    metadata, spec, status = deployment.metadata, deployment.spec, deployment.status
    base = models[spec.model_id]
    name = called_name(base.metadata.name, spec)
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
    )
    _fill_in_terms(route, spec, terms(name))
    _add_models(route, spec, status, base, models)
    for replica in status.replicas:
        route.replicas.add(
            name=replica.name,
            address=replica.address,
            is_ready=replica.state == Replica.READY and bool(replica.address),
            adapters=replica.adapters,
        )
    return route


def _add_models(route: Any, spec: Any, status: Any, base: Any, models: Mapping[str, Any]) -> None:
    """The model itself, then the adapters on it that the deployment says it serves."""
    name = called_name(base.metadata.name, spec)
    _add_model(route, name, base, parent_name="")
    served = set(status.served_names)
    for model in models.values():
        called = called_name(model.metadata.name, spec)
        is_adapter = model.spec.base_model_id == base.metadata.id
        is_ready = wire.state_of(model) == ModelState.READY
        if is_adapter and is_ready and (called in served or (spec.max_adapters and not served)):
            _add_model(route, called, model, parent_name=name)


def _add_model(route: Any, name: str, model: Any, *, parent_name: str) -> None:
    route.models.add(
        name=name,
        engine_name=name,
        model_id=model.metadata.id,
        project_id=model.metadata.parent_id,
        parent_name=parent_name,
        license=model.spec.license,
        created_at=model.metadata.created_at,
    )


def _fill_in_terms(route: Any, spec: Any, listed: TokenTerms) -> None:
    """What the spec leaves open comes from the price list. A price of its own is not mixed with that."""
    limits, price = spec.limits, spec.price
    route.limits.requests_per_minute = limits.requests_per_minute or listed.requests_per_minute
    route.limits.tokens_per_minute = limits.tokens_per_minute or listed.tokens_per_minute or TOKENS_PER_MINUTE
    has_own = bool(price.input or price.output)
    for name in ("input", "cached_input", "output"):
        setattr(route.price, name, getattr(price if has_own else listed, name))
