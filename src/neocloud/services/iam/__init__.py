"""Identity and access: tenants, projects, accounts, groups, permits, tokens, people and their sessions."""

from neocloud.core.service import Dependencies, Service
from neocloud.services.iam.access.authenticate import StoreAuthenticator
from neocloud.services.iam.access.authorize import StoreAuthorizer
from neocloud.services.iam.access.issuers import Issuers
from neocloud.services.iam.access.issuing import token_issuer
from neocloud.services.iam.access.outgoing import Outgoing
from neocloud.services.iam.access.passwords import PasswordChecker
from neocloud.services.iam.access.tenant_rights import tenant_rights
from neocloud.services.iam.api import ALIASES, METHODS, people
from neocloud.services.iam.bootstrap import Bootstrap, bootstrap
from neocloud.services.iam.kinds import KINDS
from neocloud.services.iam.people_kinds import PEOPLE_KINDS
from neocloud.services.iam.resources import TenantRights, TokenAuthenticator, TokenIssuer


def _issuers(dependencies: Dependencies) -> Issuers:
    """Return the client for other issuers. It calls them on the public internet, unless the settings allow
    private addresses and this machine."""
    settings = dependencies.settings
    hosts = frozenset(settings.issuer_hosts)
    return Issuers(dependencies.clock, Outgoing(allow_private=settings.allow_private_issuers, hosts=hosts))


SERVICE = Service(
    name="iam",
    kinds=(*KINDS, *PEOPLE_KINDS),
    methods=(*METHODS, *people.METHODS),
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
