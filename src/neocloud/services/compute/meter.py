"""What is charged: a filesystem's GiB, for the whole seconds from ready until its deletion is asked for."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from neocloud.core.store.protocol import HistoryEntry
from neocloud.core.usage import UsageRecord, intervals
from neocloud.services.compute.resources import (
    FILESYSTEM,
    GIB,
    FilesystemSpec,
    FilesystemState,
    FilesystemType,
    size_bytes,
)

CHARGED_STATES = frozenset({FilesystemState.READY, FilesystemState.UPDATING})


class FilesystemMeter:
    kinds: tuple[str, ...] = (FILESYSTEM,)

    def __call__(
        self, history: Sequence[HistoryEntry], start: datetime, end: datetime
    ) -> Iterable[UsageRecord]:
        for stretch in intervals(history, start, end):
            if stretch.entry.state in CHARGED_STATES:
                spec = FilesystemSpec.FromString(stretch.entry.spec)
                yield stretch.record(sku=sku(spec.type), units=-(-size_bytes(spec) // GIB))


def sku(filesystem_type: int) -> str:
    """ "filesystem.network-ssd" for NETWORK_SSD."""
    return f"filesystem.{FilesystemType.Name(filesystem_type).lower().replace('_', '-')}"
