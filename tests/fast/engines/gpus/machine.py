"""A machine with GPUs that is made up: a tree like /sys, a kernel that moves devices between drivers, and a
stand-in for NVML. Whatever is tested with it is simulated."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from neocloud.engines.base import Accelerator, EngineError
from neocloud.engines.podman.gpus.pci import PciBus
from tests import ROOT

NVIDIA, OTHER = "0x10de", "0x8086"
GPU_CLASS, SOUND, BRIDGE, DISK = "0x030200", "0x040300", "0x060400", "0x010802"
GPU_LOST, VERSION_MISMATCH = 15, 18


@dataclass
class Kernel:
    """Devices below `root`. Set `refuses` to let writes to an attribute fail, by its name."""

    root: Path
    refuses: set[str] = field(default_factory=set)
    written: list[tuple[str, str]] = field(default_factory=list)
    own_drivers: dict[str, str] = field(default_factory=dict)
    """The driver that takes a device by itself."""

    @property
    def pci(self) -> PciBus:
        return PciBus(self.root, self.write)

    def load(self, driver: str) -> None:
        (self.root / "sys/bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)

    def add(
        self, address: str, group: str, driver: str = "nvidia", vendor: str = NVIDIA, kind: str = GPU_CLASS
    ) -> None:
        """Put a device in; without a group for "" ."""
        folder = self._device(address)
        folder.mkdir(parents=True)
        for name, content in {"vendor": vendor, "class": kind, "driver_override": "(null)"}.items():
            (folder / name).write_text(f"{content}\n")
        if group:
            members = self.root / "sys/kernel/iommu_groups" / group / "devices"
            members.mkdir(parents=True, exist_ok=True)
            (members / address).symlink_to(folder)
            (folder / "iommu_group").symlink_to(members.parent)
        self.own_drivers[address] = driver
        self._give(address, driver)

    def pull(self, address: str) -> None:
        """Let it fall off the bus."""
        folder = self._device(address)
        for entry in folder.iterdir():
            entry.unlink()
        folder.rmdir()

    def driver(self, address: str) -> str:
        return self.pci.driver(address)

    def write(self, path: Path, text: str) -> None:
        if path.name in self.refuses:
            raise EngineError(f"The kernel refused {text!r} for {path}: Device or resource busy")
        assert path.parent.is_dir()
        self.written.append((path.name, text.strip()))
        if path.name == "driver_override":
            path.write_text(f"{text.strip() or '(null)'}\n")
        elif path.name == "unbind":
            assert self.driver(text) == path.parent.name
            self._give(text, "")
        elif not self.driver(text):
            override = (self._device(text) / "driver_override").read_text().strip()
            self._give(text, self.own_drivers[text] if override == "(null)" else override)

    def _device(self, address: str) -> Path:
        return self.root / "sys/bus/pci/devices" / address

    def _give(self, address: str, driver: str) -> None:
        link = self._device(address) / "driver"
        link.unlink(missing_ok=True)
        if driver:
            self.load(driver)
            link.symlink_to(self.root / "sys/bus/pci/drivers" / driver)


SOURCE = ROOT / "tests/fast/fleet/mock_nvml.c"


def build_nvml(folder: Path) -> Path:
    """Build the stand-in for NVML in a folder, and return the library."""
    compiler = shutil.which("gcc")
    assert compiler, "Install gcc: scripts/install-debian-packages test"
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    return library


@dataclass(frozen=True)
class Nvml:
    """The stand-in for NVML, and what it answers."""

    library: Path
    scenario: Path

    @property
    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "LD_LIBRARY_PATH": str(self.library.parent), "MOCK_NVML": str(self.scenario)}

    def answers(self, *gpus: Accelerator, lost: int | None = None) -> None:
        """Answer for these GPUs, except for the one with a number that is lost."""
        for_each = (
            f"gpu\nname {gpu.model}\nmemory_mib {gpu.memory_mib}\nuuid {gpu.uuid}\nminor {number}"
            f"\npci 0000{gpu.pci_address.upper()}\nhandle {GPU_LOST if number == lost else 0}"
            for number, gpu in enumerate(gpus)
        )
        self.says(*for_each)

    def says(self, *lines: str) -> None:
        self.scenario.write_text("".join(f"{line}\n" for line in lines))


def h100(number: int, group: str = "") -> Accelerator:
    return _gpu("NVIDIA H100 80GB HBM3", 81559, number, group)


def l40s(number: int, group: str = "") -> Accelerator:
    return _gpu("NVIDIA L40S", 46068, number, group)


def _gpu(model: str, memory_mib: int, number: int, group: str) -> Accelerator:
    return Accelerator(
        "nvidia", model, memory_mib, number, f"0000:{number + 1:02x}:00.0", group, f"GPU-{number:08x}"
    )
