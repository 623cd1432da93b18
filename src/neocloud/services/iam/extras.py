"""What this brick's handlers, and other bricks, find in `Dependencies.extras`."""

from typing import Any

from neocloud.core.clock import Clock
from neocloud.core.store.protocol import Store
from neocloud.services.iam.access.authenticate import StoreAuthenticator
from neocloud.services.iam.access.issuers import ISSUERS, Issuers, is_loopback
from neocloud.services.iam.access.issuing import token_issuer
from neocloud.services.iam.access.passwords import PASSWORDS, PasswordChecker
from neocloud.services.iam.access.tenant_rights import tenant_rights
from neocloud.services.iam.resources import AUTHENTICATOR, TENANT_RIGHTS, TOKEN_ISSUER


def extras(store: Store, clock: Clock, *, host: str = "127.0.0.1") -> dict[str, Any]:
    """While the cloud listens on loopback only (`host`), issuers on this machine may be asked over http."""
    return {
        PASSWORDS: PasswordChecker(),
        ISSUERS: Issuers(clock, is_plain_allowed=is_loopback(host)),
        TOKEN_ISSUER: token_issuer(store, clock),
        AUTHENTICATOR: StoreAuthenticator(store, clock),
        TENANT_RIGHTS: tenant_rights(store),
    }
