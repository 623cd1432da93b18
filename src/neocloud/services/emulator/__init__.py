"""Emulator: faults on demand, for clients' tests. Served only by an emulated cloud."""

from neocloud.core.service import Service
from neocloud.services.emulator.api import METHODS
from neocloud.services.emulator.faults import FaultBook
from neocloud.services.emulator.resources import Incidents

SERVICE = Service(name="emulator", methods=METHODS)

__all__ = ["SERVICE", "FaultBook", "Incidents"]
