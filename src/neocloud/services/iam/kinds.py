"""The standard nouns of this brick: which verbs they have, and the rules they follow."""

from neocloud.core.service import Kind
from neocloud.services.iam import resources as iam
from neocloud.services.iam.rules.accounts import AuthPublicKeyRules, ProjectRules, ServiceAccountRules
from neocloud.services.iam.rules.permits import AccessPermitRules, GroupMembershipRules, GroupRules

KINDS = (
    Kind(
        message=iam.CONTAINER,
        rpc="nebius.iam.v1.ProjectService",
        id_prefix=iam.PROJECT_ID_PREFIX,
        permission="iam.projects",
        parent_kinds=(iam.CONTAINER,),
        verbs=frozenset({"Create", "Get", "GetByName", "List", "Update"}),
        rules=ProjectRules(),
        initial_state=iam.State.ACTIVE,
    ),
    Kind(
        message=iam.SERVICE_ACCOUNT,
        rpc="nebius.iam.v1.ServiceAccountService",
        id_prefix=iam.SERVICE_ACCOUNT_ID_PREFIX,
        permission="iam.serviceAccounts",
        parent_kinds=(iam.CONTAINER,),
        rules=ServiceAccountRules(),
    ),
    Kind(
        message=iam.AUTH_PUBLIC_KEY,
        rpc="nebius.iam.v1.AuthPublicKeyService",
        id_prefix=iam.AUTH_PUBLIC_KEY_ID_PREFIX,
        permission="iam.authPublicKeys",
        parent_kinds=(iam.CONTAINER,),
        verbs=frozenset({"Create", "Get", "List", "Update", "Delete"}),
        rules=AuthPublicKeyRules(),
        initial_state=iam.State.ACTIVE,
    ),
    Kind(
        message=iam.GROUP,
        rpc="nebius.iam.v1.GroupService",
        id_prefix=iam.GROUP_ID_PREFIX,
        permission="iam.groups",
        parent_kinds=(iam.CONTAINER,),
        rules=GroupRules(),
        initial_state=iam.State.ACTIVE,
    ),
    Kind(
        message=iam.GROUP_MEMBERSHIP,
        rpc="nebius.iam.v1.GroupMembershipService",
        id_prefix=iam.GROUP_MEMBERSHIP_ID_PREFIX,
        permission="iam.groupMemberships",
        parent_kinds=(iam.GROUP,),
        verbs=frozenset({"Create", "Get", "Delete"}),
        rules=GroupMembershipRules(),
    ),
    Kind(
        message=iam.ACCESS_PERMIT,
        rpc="nebius.iam.v1.AccessPermitService",
        id_prefix=iam.ACCESS_PERMIT_ID_PREFIX,
        permission="iam.accessPermits",
        parent_kinds=(iam.GROUP,),
        verbs=frozenset({"Create", "Get", "List", "Delete"}),
        rules=AccessPermitRules(),
    ),
)
