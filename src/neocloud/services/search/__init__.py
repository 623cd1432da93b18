"""Search: resources of all kinds, by name, id and labels, as far as the caller may read them."""

from neocloud.core.service import Service
from neocloud.services.search.api import METHODS

SERVICE = Service(name="search", methods=METHODS)
