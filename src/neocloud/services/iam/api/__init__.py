"""What a caller may do beyond the standard verbs: the table of methods and the permission each needs."""

from neocloud.core.service import Method
from neocloud.services.iam.api import (
    access_keys,
    containers,
    groups,
    keys,
    profile,
    roles,
    static_keys,
    tenants,
    token_exchange,
)

METHODS = (
    # The subject token is the proof; whoever holds one may call.
    Method("nebius.iam.v1.TokenExchangeService/Exchange", token_exchange.exchange, permission=None),
    # Any signed-in subject, about itself.
    Method("nebius.iam.v1.ProfileService/Get", profile.get, permission=""),
    Method("nebius.iam.v1.TenantService/List", tenants.list_tenants, permission=""),
    Method(
        "nebius.iam.v1.TenantService/Get", tenants.get, "iam.tenants.get", target=lambda request: request.id
    ),
    *containers.METHODS,
    *keys.METHODS,
    *access_keys.METHODS,
    *static_keys.METHODS,
    *groups.METHODS,
    *roles.METHODS,
)

ALIASES = (*containers.ALIASES, *access_keys.ALIASES)
