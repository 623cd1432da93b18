"""What a caller may do beyond the standard verbs: the table of methods and the permission each needs."""

from neocloud.core.service import Method
from neocloud.services.iam.api import groups, keys, profile, tenants, token_exchange

METHODS = (
    # The subject token is the proof; whoever holds one may call.
    Method("nebius.iam.v1.TokenExchangeService/Exchange", token_exchange.exchange, permission=None),
    # Any signed-in subject, about itself.
    Method("nebius.iam.v1.ProfileService/Get", profile.get, permission=""),
    Method("nebius.iam.v1.TenantService/List", tenants.list_tenants, permission=""),
    Method(
        "nebius.iam.v1.TenantService/Get", tenants.get, "iam.tenants.get", target=lambda request: request.id
    ),
    Method(
        "nebius.iam.v1.AuthPublicKeyService/ListByAccount",
        keys.list_by_account,
        "iam.authPublicKeys.list",
        target=lambda request: request.account.service_account.id,
    ),
    Method(
        "nebius.iam.v1.AuthPublicKeyService/Activate",
        keys.activate,
        "iam.authPublicKeys.update",
        target=lambda request: request.id,
        is_change=True,
    ),
    Method(
        "nebius.iam.v1.AuthPublicKeyService/Deactivate",
        keys.deactivate,
        "iam.authPublicKeys.update",
        target=lambda request: request.id,
        is_change=True,
    ),
    Method(
        "nebius.iam.v1.GroupMembershipService/ListMembers",
        groups.list_members,
        "iam.groupMemberships.list",
        target=lambda request: request.parent_id,
    ),
    Method(
        "nebius.iam.v1.GroupMembershipService/ListMemberOf",
        groups.list_member_of,
        "iam.groupMemberships.list",
        target=lambda request: request.subject_id,
    ),
)
