"""Audit: a log of all changes and refusals, by subject."""

from neocloud.core.service import Service
from neocloud.services.audit.api import METHODS, StoreAuditLog
from neocloud.services.audit.public import AuditLog

SERVICE = Service(name="audit", methods=METHODS, provides={AuditLog: StoreAuditLog})
