"""Identity and access: tenants, projects, accounts, groups, permits, tokens, people and their sessions."""

from neocloud.core.service import Service
from neocloud.services.iam.access.authenticate import StoreAuthenticator
from neocloud.services.iam.access.authorize import StoreAuthorizer
from neocloud.services.iam.api import METHODS, TWINS, people
from neocloud.services.iam.bootstrap import Bootstrap, bootstrap
from neocloud.services.iam.extras import extras
from neocloud.services.iam.kinds import KINDS
from neocloud.services.iam.people_kinds import PEOPLE_KINDS

SERVICE = Service(name="iam", kinds=(*KINDS, *PEOPLE_KINDS), methods=(*METHODS, *people.METHODS), twins=TWINS)

__all__ = ["SERVICE", "Bootstrap", "StoreAuthenticator", "StoreAuthorizer", "bootstrap", "extras"]
