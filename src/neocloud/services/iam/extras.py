"""What this brick's handlers, and other bricks, find in `Dependencies.extras`."""

from collections.abc import Iterable
from typing import Any

from neocloud.core.clock import Clock
from neocloud.core.store.protocol import Store
from neocloud.services.iam.access.authenticate import StoreAuthenticator
from neocloud.services.iam.access.issuers import ISSUERS, Issuers
from neocloud.services.iam.access.issuing import token_issuer
from neocloud.services.iam.access.outgoing import Outgoing
from neocloud.services.iam.access.passwords import PASSWORDS, PasswordChecker
from neocloud.services.iam.access.tenant_rights import tenant_rights
from neocloud.services.iam.resources import AUTHENTICATOR, TENANT_RIGHTS, TOKEN_ISSUER


def extras(
    store: Store, clock: Clock, *, allow_private_issuers: bool = False, issuer_hosts: Iterable[str] = ()
) -> dict[str, Any]:
    """Issuers of tokens are asked on the public internet, unless private addresses and this machine are
    allowed; their endpoints may lie on their own origin and on these hosts."""
    return {
        PASSWORDS: PasswordChecker(),
        ISSUERS: Issuers(clock, Outgoing(allow_private=allow_private_issuers, hosts=frozenset(issuer_hosts))),
        TOKEN_ISSUER: token_issuer(store, clock),
        AUTHENTICATOR: StoreAuthenticator(store, clock),
        TENANT_RIGHTS: tenant_rights(store),
    }
