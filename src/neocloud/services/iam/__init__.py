"""Identity and access: tenants, projects, accounts, groups, permits, tokens."""

from neocloud.core.service import Service
from neocloud.services.iam.access.authenticate import StoreAuthenticator
from neocloud.services.iam.access.authorize import StoreAuthorizer
from neocloud.services.iam.api import METHODS
from neocloud.services.iam.bootstrap import Bootstrap, bootstrap
from neocloud.services.iam.kinds import KINDS

SERVICE = Service(name="iam", kinds=KINDS, methods=METHODS)

__all__ = ["SERVICE", "Bootstrap", "StoreAuthenticator", "StoreAuthorizer", "bootstrap"]
