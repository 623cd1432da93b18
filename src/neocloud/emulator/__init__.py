# pyright: standard
"""The emulator: the whole API on a fake engine, for tests of clients. No root, no containers, nothing real.

This package has everything that differs from a real cloud: the fake engine, Slurm and machines, short waits,
answers only when an operation is finished, and faults that tests inject.
"""

from dataclasses import replace

from neocloud.control_plane.lifecycle import Composition
from neocloud.emulator.faults import EmulatorIncidents, EmulatorMiddleware, ShortRetries
from neocloud.emulator.machine import EmulatedMachine, UnknownGpus, emulated_machine
from neocloud.services import emulator as faults

__all__ = ["EmulatedMachine", "UnknownGpus", "emulated", "emulated_machine"]


def emulated(composition: Composition, machine: EmulatedMachine) -> Composition:
    """Return the composition on an emulated machine, with faults to inject."""
    registry = faults.FaultRegistry(composition.clock)
    provided = composition.provided.copy().add(faults.FaultRegistry, registry)
    machine.provide(provided)
    service = replace(
        faults.SERVICE,
        provides={
            faults.Incidents: lambda dependencies: EmulatorIncidents(
                machine.engine, dependencies.store, dependencies.clock
            )
        },
    )
    retries = ShortRetries(registry)
    return replace(
        composition,
        services=(*composition.services, service),
        middleware=lambda store: EmulatorMiddleware(registry, store, composition.clock),
        reconciler=retries.reconciler,
        provided=provided,
    )
