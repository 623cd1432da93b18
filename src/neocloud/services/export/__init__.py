"""Export rules: audit log and bills, written to buckets by the cloud itself."""

from neocloud.core.kind import Kind
from neocloud.core.service import Service
from neocloud.services.export.reconcile import ExportRuleReconciler
from neocloud.services.export.rules import ExportRuleRules
from neocloud.services.export.types import RULE, RULE_ID_PREFIX, ExportState

KINDS = (
    Kind(
        message=RULE,
        rpc="neocloud.export.v1.ExportRuleService",
        id_prefix=RULE_ID_PREFIX,
        permission="export.rules",
        parent_kinds=("nebius.iam.v1.Container",),
        verbs=frozenset({"Create", "Get", "GetByName", "List", "Delete"}),
        rules=ExportRuleRules(),
        initial_state=ExportState.ACTIVE,
        is_reconciled=True,
    ),
)

SERVICE = Service(
    name="export",
    kinds=KINDS,
    reconcilers=lambda dependencies: (ExportRuleReconciler(dependencies),),
)
