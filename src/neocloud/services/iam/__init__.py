"""Identity and access: tenants, projects, accounts, groups, permits, tokens, people and their sessions."""

from neocloud.core.service import Dependencies, Service
from neocloud.services.iam.access.authentication import StoreAuthenticator
from neocloud.services.iam.access.authorization import StoreAuthorizer, tenant_rights
from neocloud.services.iam.access.federation import Issuers
from neocloud.services.iam.access.outgoing import Outgoing
from neocloud.services.iam.access.passwords import PasswordChecker
from neocloud.services.iam.access.tokens import token_issuer
from neocloud.services.iam.api import ALIASES, METHODS
from neocloud.services.iam.bootstrap import Bootstrap, bootstrap
from neocloud.services.iam.kinds import KINDS
from neocloud.services.iam.public import TenantRights, TokenAuthenticator, TokenIssuer


def _issuers(dependencies: Dependencies) -> Issuers:
    """Return the client for other issuers. It calls them on the public internet, unless the settings allow
    private addresses and this machine."""
    settings = dependencies.settings
    hosts = frozenset(settings.issuer_hosts)
    return Issuers(dependencies.clock, Outgoing(allow_private=settings.allow_private_issuers, hosts=hosts))


SERVICE = Service(
    name="iam",
    kinds=KINDS,
    methods=METHODS,
    aliases=ALIASES,
    provides={
        PasswordChecker: lambda dependencies: PasswordChecker(),
        Issuers: _issuers,
        TokenIssuer: lambda dependencies: token_issuer(dependencies.store, dependencies.clock),
        TokenAuthenticator: lambda dependencies: StoreAuthenticator(dependencies.store, dependencies.clock),
        TenantRights: lambda dependencies: tenant_rights(dependencies.store),
    },
)

__all__ = ["SERVICE", "Bootstrap", "StoreAuthenticator", "StoreAuthorizer", "bootstrap"]
