"""PCI devices as sysfs shows them: drivers, IOMMU groups, and why a device cannot be passed to a guest.

VFIO passes an IOMMU group as a whole: no other device of it may be used by the host. Bridges are not
endpoints, and the other functions of a GPU's card (sound, USB) go with it.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from neocloud.engines.base import NO_IOMMU, EngineError
from neocloud.engines.podman.gpus.limited import LimitedRunner

VFIO_DRIVER = "vfio-pci"
_NVIDIA = "0x10de"
_BRIDGE = "0x0604"
_NO_DRIVERS = frozenset({"", VFIO_DRIVER, "pci-stub"})
_ADDRESS = re.compile(r"(?:[0-9a-f]{4})?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
_WRITE_SECONDS = 30.0

NO_VFIO = (
    "the kernel module vfio-pci is not loaded; run `modprobe vfio-pci`, and write vfio-pci to "
    "/etc/modules-load.d/vfio.conf so that it is loaded after a restart"
)
CONSOLE = "it shows the host's console; make another card the primary display in the firmware"

Write = Callable[[Path, str], None]


def normal_address(text: str) -> str:
    """Return "0000:01:00.0" for what NVML writes as "00000000:01:00.0"; "" for what is not an address."""
    match = _ADDRESS.fullmatch(text.strip().lower())
    return match[1] if match else ""


class PciBus:
    """The PCI devices of a machine, below a folder like /sys."""

    def __init__(self, root: Path = Path("/"), write: Write | None = None) -> None:
        """`write` replaces the writing of attributes, in tests."""
        self._root = root
        self._devices = root / "sys/bus/pci/devices"
        self._drivers = root / "sys/bus/pci/drivers"
        self._groups = root / "sys/kernel/iommu_groups"
        self._write: Write = write or write_attribute

    def has_nvidia(self) -> bool:
        """Return whether there is a device of NVIDIA, or its driver, which may show none here, as in WSL."""
        if any((self._root / "dev" / name).exists() for name in ("nvidiactl", "dxg")):
            return True
        return any(_content(folder / "vendor") == _NVIDIA for folder in _entries(self._devices))

    def driver(self, address: str) -> str:
        """Return the name of the driver that has the device; "" for none."""
        return _link(self._devices / address / "driver")

    def iommu_group(self, address: str) -> str:
        return _link(self._devices / address / "iommu_group")

    def functions(self, address: str) -> list[str]:
        """Return the functions of the device's card in its IOMMU group, itself too, which go together."""
        slot = address.rpartition(".")[0]
        members = self._members(self.iommu_group(address))
        return [each for each in members if each.rpartition(".")[0] == slot]

    def obstacle(self, address: str) -> str:
        """Return why the device cannot be passed to a virtual machine, and what to do; "" where it can."""
        if not address or not (self._devices / address).exists():
            return "it is not on the PCI bus; restart the host, and replace the card if that does not help"
        group = self.iommu_group(address)
        if not group:
            return NO_IOMMU
        if not (self._drivers / VFIO_DRIVER).exists():
            return NO_VFIO
        if _content(self._devices / address / "boot_vga") == "1":
            return CONSOLE
        mine = self.functions(address)
        for other in self._members(group):
            if other in mine or self._is_bridge(other):
                continue
            driver = self.driver(other)
            if driver not in _NO_DRIVERS or _content(self._devices / other / "vendor") == _NVIDIA:
                used = f" (driver {driver})" if driver else ""
                return (
                    f"it shares IOMMU group {group} with {other}{used}, which would have to be passed too; "
                    "put the card into another slot, or switch on ACS in the firmware"
                )
        return ""

    def bind(self, address: str) -> None:
        """Take the device from its driver and give it to VFIO. Raises EngineError, with nothing changed."""
        if self.driver(address) == VFIO_DRIVER:
            return
        self._write(self._devices / address / "driver_override", VFIO_DRIVER)
        try:
            self._rebind(address)
        except EngineError:
            with suppress(EngineError):
                self.unbind(address)
            raise
        if self.driver(address) != VFIO_DRIVER:
            self.unbind(address)
            raise EngineError(
                f"The kernel did not give device {address} to {VFIO_DRIVER}; `dmesg` says why. It is "
                f"with its driver again ({self.driver(address) or 'none'})."
            )

    def unbind(self, address: str) -> None:
        """Let the kernel choose the device's driver again."""
        if not (self._devices / address).exists():
            return
        self._write(self._devices / address / "driver_override", "\n")
        if self.driver(address) in ("", VFIO_DRIVER):
            self._rebind(address)

    def _rebind(self, address: str) -> None:
        driver = self.driver(address)
        if driver:
            self._write(self._drivers / driver / "unbind", address)
        self._write(self._root / "sys/bus/pci/drivers_probe", address)

    def _members(self, group: str) -> list[str]:
        return sorted(folder.name for folder in _entries(self._groups / group / "devices")) if group else []

    def _is_bridge(self, address: str) -> bool:
        return _content(self._devices / address / "class").startswith(_BRIDGE)


_runner = LimitedRunner()


def write_attribute(path: Path, text: str) -> None:
    """Write to sysfs in a process of its own: a driver that does not release a device never returns."""
    ended = _runner.run(["tee", str(path)], seconds=_WRITE_SECONDS, stdin=text.encode())
    if ended.returncode:
        reason = ended.stderr.decode(errors="replace").strip()
        raise EngineError(f"The kernel refused {text.strip() or 'an empty line'!r} for {path}: {reason}")


def _entries(folder: Path) -> Iterator[Path]:
    try:
        yield from folder.iterdir()
    except OSError:
        return


def _content(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _link(path: Path) -> str:
    try:
        return path.readlink().name
    except OSError:
        return ""
