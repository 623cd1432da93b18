"""Operator: actions on resources of any tenant, and maintenance, for operators of the cloud."""

from neocloud.core.kind import Kind
from neocloud.core.service import Service
from neocloud.services.compute.public import MAINTENANCE, MaintenanceState
from neocloud.services.operator.api import METHODS
from neocloud.services.operator.reconcile import MaintenanceReconciler
from neocloud.services.operator.rules import MaintenanceRules

KINDS = (
    Kind(
        message=MAINTENANCE,
        rpc="neocloud.operator.v1.MaintenanceService",
        id_prefix="operatormaintenance",
        permission="operator.maintenances",
        parent_kinds=("nebius.iam.v1.Container",),
        verbs=frozenset({"Create", "Get", "GetByName", "List", "Delete"}),
        rules=MaintenanceRules(),
        initial_state=MaintenanceState.ANNOUNCED,
        is_reconciled=True,
    ),
)

SERVICE = Service(
    name="operator",
    kinds=KINDS,
    methods=METHODS,
    reconcilers=lambda dependencies: (MaintenanceReconciler(dependencies),),
)
