"""The kind of registries, their deletion, and the verbs of artifacts."""

from neocloud.core.kind import Kind
from neocloud.services.registry.api import artifacts, registries, vulnerability_reports
from neocloud.services.registry.rules import RegistryRules
from neocloud.services.registry.types import REGISTRY, REGISTRY_ID_PREFIX, REGISTRY_SERVICE, RegistryState

KINDS = (
    Kind(
        message=REGISTRY,
        rpc=REGISTRY_SERVICE,
        id_prefix=REGISTRY_ID_PREFIX,
        permission="registry.registries",
        parent_kinds=("nebius.iam.v1.Container",),
        verbs=frozenset({"Create", "Get", "GetByName", "List", "Update"}),
        rules=RegistryRules(),
        initial_state=RegistryState.CREATING,
        deleting_state=RegistryState.DELETING,
        is_reconciled=True,
    ),
)

METHODS = (*registries.METHODS, *artifacts.METHODS, *vulnerability_reports.METHODS)
