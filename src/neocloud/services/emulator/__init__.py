"""Emulator: injected faults, for tests of clients. Served only by an emulated cloud."""

from neocloud.core.service import Service
from neocloud.services.emulator.api import METHODS, FaultRegistry, Incidents

SERVICE = Service(name="emulator", methods=METHODS)

__all__ = ["SERVICE", "FaultRegistry", "Incidents"]
