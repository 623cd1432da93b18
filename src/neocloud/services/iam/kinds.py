"""The standard nouns of this brick: which verbs they have, and the rules they follow."""

from neocloud.core.kind import Kind
from neocloud.services.iam import resources as iam
from neocloud.services.iam.members import view_group, view_membership
from neocloud.services.iam.rules.accounts import AuthPublicKeyRules, ProjectRules, ServiceAccountRules
from neocloud.services.iam.rules.keys import AccessKeyRules, view_key, view_static_key
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
        method_overrides={"Delete": "nebius.iam.v2.ProjectService/Delete"},
    ),
    Kind(
        message=iam.SERVICE_ACCOUNT,
        rpc="nebius.iam.v1.ServiceAccountService",
        id_prefix=iam.SERVICE_ACCOUNT_ID_PREFIX,
        permission="iam.serviceAccounts",
        parent_kinds=(iam.CONTAINER,),
        rules=ServiceAccountRules(),
        # Whoever makes something act as an account can do what the account can.
        reference_verb="impersonate",
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
        view=view_key,
    ),
    Kind(
        message=iam.GROUP,
        rpc="nebius.iam.v1.GroupService",
        id_prefix=iam.GROUP_ID_PREFIX,
        permission="iam.groups",
        parent_kinds=(iam.CONTAINER,),
        rules=GroupRules(),
        initial_state=iam.State.ACTIVE,
        view=view_group,
    ),
    Kind(
        message=iam.GROUP_MEMBERSHIP,
        rpc="nebius.iam.v1.GroupMembershipService",
        id_prefix=iam.GROUP_MEMBERSHIP_ID_PREFIX,
        permission="iam.groupMemberships",
        parent_kinds=(iam.GROUP,),
        verbs=frozenset({"Create", "Get", "Delete"}),
        rules=GroupMembershipRules(),
        view=view_membership,
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
    Kind(
        message=iam.ACCESS_KEY,
        rpc="nebius.iam.v2.AccessKeyService",
        id_prefix=iam.ACCESS_KEY_ID_PREFIX,
        permission="iam.accessKeys",
        parent_kinds=(iam.CONTAINER,),
        verbs=frozenset({"Create", "Get", "List", "Update", "Delete"}),
        rules=AccessKeyRules(),
        initial_state=iam.State.ACTIVE,
        is_named_anyway=True,
        view=view_key,
    ),
    Kind(
        message=iam.STATIC_KEY,
        rpc="nebius.iam.v1.StaticKeyService",
        id_prefix=iam.STATIC_KEY_ID_PREFIX,
        permission="iam.staticKeys",
        parent_kinds=(iam.CONTAINER,),
        verbs=frozenset({"Get", "GetByName", "List", "Delete"}),
        view=view_static_key,
    ),
)
