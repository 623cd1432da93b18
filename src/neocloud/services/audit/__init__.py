"""Audit: who changed what, and who was refused."""

from neocloud.core.service import Service
from neocloud.services.audit.api import METHODS

SERVICE = Service(name="audit", methods=METHODS)
