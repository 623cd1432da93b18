# pyright: standard
"""The machine of an emulated cloud: a fake engine and a fake Slurm, kept across restarts.

The emulated world is in memory and written to a file of the home folder a moment after it has changed.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from neocloud.core.clock import Clock
from neocloud.core.readers import ServiceRegistry
from neocloud.core.store import load_or_make_key
from neocloud.core.store.vault import Vault
from neocloud.emulator.fake_machines import FakeMachines
from neocloud.emulator.fakes import (
    FakeModelFolders,
    FakeModelReader,
    FakeModelServerClient,
    FakeSlurm,
)
from neocloud.emulator.world_file import WorldFile
from neocloud.engines.base import Accelerator
from neocloud.engines.fake import FakeEngine, FakeWorld
from neocloud.engines.gpu_types import gpu_type
from neocloud.services.compute.public import platforms
from neocloud.services.inference.public import ModelFolders
from neocloud.services.inference.reconcile.model_server import ModelServerClient
from neocloud.services.inference.reconcile.reader import ModelReader
from neocloud.services.slurm.access import SlurmFactory
from neocloud.settings.settings import Settings

CPUS = 1_000_000
MEMORY_MIB = 4 * CPUS * 1024
GPUS_OF_EACH_TYPE = 128
GPU_MEMORY_GIB = {"h100": 80, "h200": 141, "b200": 180, "b300": 288, "l40s": 48, "a100": 80}
OTHER_GPU_MEMORY_GIB = 16
KEEP_SECONDS = 1.0
REST_FOR_EACH_SECOND_OF_KEEPING = 20.0
_GPUS = re.compile(r"(?P<count>[1-9][0-9]{0,3})x(?P<model>[A-Za-z][A-Za-z0-9 -]*)")


class UnknownGpus(ValueError):
    """`--emulator-gpus` is not valid. The message says how to write it."""


class EmulatedWorld(FakeWorld):
    """Records that it changed instead of writing itself each time."""

    is_changed = False

    def save(self) -> None:
        self.is_changed = True


@dataclass
class EmulatedMachine:
    engine: FakeEngine
    slurm: FakeSlurm
    file: WorldFile
    home: Path

    def provide(self, provided: ServiceRegistry) -> None:
        """Replace interfaces of services by the fakes."""
        provided.add(SlurmFactory, self.slurm.connect)
        provided.add(ModelReader, FakeModelReader())
        provided.add(ModelServerClient, FakeModelServerClient(reads_files=False))
        provided.add(ModelFolders, FakeModelFolders(self.home / "models"))

    def keep(self) -> None:
        """Write the world to its file when it has changed."""
        world = self.engine.world
        self.engine.applied.clear()
        if not (isinstance(world, EmulatedWorld) and world.is_changed):
            return
        world.is_changed = False
        self.file.write(world, self.slurm.records)


@asynccontextmanager
async def emulated_machine(settings: Settings, clock: Clock) -> AsyncIterator[EmulatedMachine]:
    """Run the machine, in the state that the last server on this home folder left."""
    file = WorldFile(settings.home, Vault(load_or_make_key(settings.key_file)))
    world = EmulatedWorld()
    slurm, machines = FakeSlurm(world), FakeMachines(world)
    slurm.records.update(file.read(world))
    engine = FakeEngine(
        world,
        responder=lambda *call: slurm.respond(*call) or machines.respond(*call),
        clock=clock,
        cpus=CPUS,
        memory_mib=MEMORY_MIB,
        accelerators=gpus(settings.emulator_gpus),
        is_boundless=True,
    )
    machine = EmulatedMachine(engine, slurm, file, settings.home)
    keeping = asyncio.create_task(_keep(machine, clock))
    try:
        yield machine
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})
        machine.keep()
        await engine.close()


async def _keep(machine: EmulatedMachine, clock: Clock) -> None:
    """Write the world again and again; less often the longer that takes."""
    while True:
        begin = clock.monotonic()
        machine.keep()
        took = clock.monotonic() - begin
        await clock.sleep(max(KEEP_SECONDS, took * REST_FOR_EACH_SECOND_OF_KEEPING))


def gpus(text: str) -> tuple[Accelerator, ...]:
    """Return the accelerators of a text like "8xH100,2xL40S"; "none" for none, "" for many of every type in
    the catalogue."""
    if text.strip().lower() == "none":
        return ()
    wanted = text or ",".join(f"{GPUS_OF_EACH_TYPE}x{name.upper()}" for name in _published_types())
    found: list[Accelerator] = []
    for part in wanted.split(","):
        match = _GPUS.fullmatch(part.strip())
        if match is None:
            raise UnknownGpus(
                f'--emulator-gpus: {part.strip()!r} is not of the form "8xH100"; separate several by commas,'
                ' or write "none"'
            )
        model = f"NVIDIA {match['model']}"
        memory_mib = GPU_MEMORY_GIB.get(gpu_type(model), OTHER_GPU_MEMORY_GIB) * 1024
        first = len(found)
        found += [_gpu(model, memory_mib, first + number) for number in range(int(match["count"]))]
    return tuple(found)


def _gpu(model: str, memory_mib: int, number: int) -> Accelerator:
    """Return a GPU with an address of its own, which can be passed to a machine."""
    address = f"{number >> 8:04x}:{number & 0xFF:02x}:00.0"
    return Accelerator("nvidia", model, memory_mib, number, address, str(number), f"GPU-emulated-{number}")


def _published_types() -> list[str]:
    presets = [preset for platform in platforms().values() for preset in platform.presets.values()]
    return sorted({preset.gpu_type for preset in presets if preset.gpu_type})
