"""Operator: actions on resources of any tenant, for operators of the cloud."""

from neocloud.core.service import Service
from neocloud.services.operator.api import METHODS

SERVICE = Service(name="operator", methods=METHODS)
