"""The kinds and methods of inference, and the permission that each needs."""

from neocloud.core.kind import Kind
from neocloud.core.service import Method
from neocloud.services.inference.api import deployments, gateway
from neocloud.services.inference.rules import DeploymentRules, ModelRules
from neocloud.services.inference.rules.budget import BudgetRules, budget_view
from neocloud.services.inference.types import (
    BUDGET,
    BUDGET_ID_PREFIX,
    DEPLOYMENT,
    DEPLOYMENT_ID_PREFIX,
    MODEL,
    MODEL_ID_PREFIX,
    PROJECT,
    REPLICA_RESERVATION,
    RESERVATION_HELD,
    RESERVATION_ID_PREFIX,
    RESERVATION_STOPPED,
    DeploymentState,
    ModelState,
)

_DEPLOYMENTS = "neocloud.inference.v1.DeploymentService"

MODELS = Kind(
    message=MODEL,
    rpc="neocloud.inference.v1.ModelService",
    id_prefix=MODEL_ID_PREFIX,
    permission="inference.models",
    parent_kinds=(PROJECT,),
    rules=ModelRules(),
    initial_state=ModelState.CREATING,
    is_reconciled=True,
    is_named_by_rules=True,
)
DEPLOYMENTS = Kind(
    message=DEPLOYMENT,
    rpc=_DEPLOYMENTS,
    id_prefix=DEPLOYMENT_ID_PREFIX,
    permission="inference.deployments",
    parent_kinds=(PROJECT,),
    rules=DeploymentRules(),
    initial_state=DeploymentState.CREATING,
    stopped_state=DeploymentState.STOPPED,
    is_reconciled=True,
)
RESERVATIONS = Kind(
    message=REPLICA_RESERVATION,
    rpc=_DEPLOYMENTS,
    id_prefix=RESERVATION_ID_PREFIX,
    permission="inference.replicaReservations",
    parent_kinds=(PROJECT,),
    verbs=frozenset(),
    initial_state=RESERVATION_HELD,
    stopped_state=RESERVATION_STOPPED,
)
BUDGETS = Kind(
    message=BUDGET,
    rpc="neocloud.inference.v1.BudgetService",
    id_prefix=BUDGET_ID_PREFIX,
    permission="inference.budgets",
    parent_kinds=(PROJECT,),
    rules=BudgetRules(),
    initial_state="ACTIVE",
    outside_view=budget_view,
)

KINDS = (MODELS, DEPLOYMENTS, RESERVATIONS, BUDGETS)

METHODS: tuple[Method, ...] = (*deployments.METHODS, *gateway.METHODS)
