"""The operations and bytes per second that a disk of each type and size may use. Pure.

The maxima of the SSD types are those that Nebius publishes for one disk. It publishes none for NETWORK_HDD,
which has the limits that Yandex Cloud publishes for its disks of that name: they grow with each allocation
unit that the disk has begun.
"""

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass

_MIB, _GIB = 2**20, 2**30


@dataclass(frozen=True)
class DiskLimits:
    """Most per second; reads and writes are counted apart."""

    read_operations: int
    write_operations: int
    read_bytes: int
    write_bytes: int

    def to_dict(self) -> dict[str, int]:
        """Return the limits as machine.json and the control program of a machine have them."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.read_operations} read and {self.write_operations} write operations, "
            f"{self.read_bytes / _MIB:g} MiB read and {self.write_bytes / _MIB:g} MiB written per second"
        )


def parse_limits(data: object) -> DiskLimits | None:
    """Return the limits that a machine reports; None where it reports none, or something else."""
    names = tuple(DiskLimits.__annotations__)
    if not isinstance(data, Mapping):
        return None
    values: list[object] = [data.get(name) for name in names]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    numbers = [value for value in values if isinstance(value, int) and value > 0]
    return DiskLimits(*numbers) if len(numbers) == len(names) else None


@dataclass(frozen=True)
class _Scale:
    """Limits of a type whose disks get `per_unit` for each unit begun, up to `most`."""

    most: DiskLimits
    unit_bytes: int = 0
    per_unit: DiskLimits | None = None

    def of(self, size_bytes: int) -> DiskLimits:
        if self.per_unit is None:
            return self.most
        units = max(1, -(-size_bytes // self.unit_bytes))
        pairs = zip(astuple(self.per_unit), astuple(self.most), strict=True)
        return DiskLimits(*(min(units * unit, most) for unit, most in pairs))


_FAST = _Scale(DiskLimits(75_000, 75_000, _GIB, _GIB))
_SCALES = {
    "NETWORK_SSD": _Scale(DiskLimits(20_000, 40_000, 450 * _MIB, 450 * _MIB)),
    "NETWORK_SSD_NON_REPLICATED": _FAST,
    "NETWORK_SSD_IO_M3": _FAST,
    "NETWORK_HDD": _Scale(
        most=DiskLimits(2_000, 11_000, 240 * _MIB, 240 * _MIB),
        unit_bytes=256 * _GIB,
        per_unit=DiskLimits(300, 300, 30 * _MIB, 30 * _MIB),
    ),
}


def disk_limits(disk_type: str, size_bytes: int) -> DiskLimits | None:
    """Return the limits of a disk of this type, by the name of its enum value, and size; None for a type
    without limits."""
    scale = _SCALES.get(disk_type)
    return scale.of(size_bytes) if scale else None
