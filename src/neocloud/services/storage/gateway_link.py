"""The exchange of object gateway and control plane: reports one way, changes of buckets the other.

Reports are kept in memory only. After a restart of the control plane nothing is known until the gateway has
reported, which it does at once.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from neocloud.core.clock import Clock
from neocloud.core.resource_changes import ResourceChanges
from neocloud.messages.neocloud.storage.v1 import (
    BlobPlace,
    BucketReport,
    InventoryReport,
    ReportBucketsRequest,
    ReportInventoriesRequest,
    ReportTransfersRequest,
    ScrubReport,
    TransferReport,
)
from neocloud.services.iam.types import ACCESS_KINDS
from neocloud.services.storage.types import BUCKET, INVENTORY, TRANSFER

REPORT_TIMEOUT = timedelta(seconds=30)
"""A gateway that has not reported for this long counts as gone."""


class BucketChanges(ResourceChanges):
    def __init__(self, clock: Clock, other_kinds: Iterable[str] = ()) -> None:
        """`other_kinds` of other services have buckets in the gateway, too."""
        super().__init__(clock, (BUCKET, *other_kinds))


class TransferChanges(ResourceChanges):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, (TRANSFER,))


class InventoryChanges(ResourceChanges):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, (INVENTORY,))


class AccessChanges(ResourceChanges):
    """The changes of keys, accounts, groups and rights."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, ACCESS_KINDS)


class BucketBoard:
    """The latest report on each bucket; one for the whole control plane."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reports: dict[str, BucketReport] = {}
        self._reported_at: datetime | None = None
        self.endpoint = ""
        """Host and port at which the gateway reports that it serves S3: "127.0.0.1:8902"."""
        self.tls_port = 0
        """Its port over TLS for other machines; 0: there is none."""
        self.scrub: ScrubReport | None = None
        """The last time that it verified all objects."""
        self.blob_place: BlobPlace | None = None
        """The other S3 engine that has the bodies of objects."""

    def report(self, request: ReportBucketsRequest) -> set[str]:
        """Store a report; return the ids of the buckets to reconcile: those of which something is new."""
        self._reported_at = self._clock.now()
        self.endpoint = request.endpoint or self.endpoint
        self.tls_port = request.tls_port if request.endpoint else self.tls_port
        if request.HasField("scrub"):
            self.scrub = request.scrub
        if request.endpoint:
            self.blob_place = request.blob_place if request.HasField("blob_place") else None
        reports = {each.id: each for each in request.buckets}
        changed = {each for each, report in reports.items() if self._reports.get(each) != report}
        if request.is_complete:
            changed |= self._reports.keys() - reports.keys()
            self._reports = reports
        else:
            self._reports.update(reports)
        return changed

    def find(self, bucket_id: str) -> BucketReport | None:
        return self._reports.get(bucket_id)

    @property
    def is_reporting(self) -> bool:
        reported_at = self._reported_at
        return reported_at is not None and self._clock.now() - reported_at <= REPORT_TIMEOUT

    def orphans(self, known: Iterable[str]) -> list[BucketReport]:
        """Return the buckets of the gateway that are not among these, by name."""
        ids = set(known)
        found = (each for each in self._reports.values() if each.id not in ids and not each.is_purged)
        return sorted(found, key=lambda each: each.name)


class TransferBoard:
    """The latest report on each transfer; one for the whole control plane."""

    def __init__(self) -> None:
        self._reports: dict[str, TransferReport] = {}

    def report(self, request: ReportTransfersRequest) -> set[str]:
        """Store a report; return the ids of the transfers of which something is new."""
        changed: set[str] = set()
        for each in request.transfers:
            kept = TransferReport()
            kept.CopyFrom(each)
            kept.ClearField("ended_iterations")
            if self._reports.get(each.id) != kept:
                self._reports[each.id] = kept
                changed.add(each.id)
        return changed

    def forget(self, transfer_ids: Iterable[str]) -> None:
        """Forget the reports on transfers that are gone."""
        for each in transfer_ids:
            self._reports.pop(each, None)

    def find(self, transfer_id: str) -> TransferReport | None:
        return self._reports.get(transfer_id)


class InventoryBoard:
    """The latest report on each inventory; one for the whole control plane."""

    def __init__(self) -> None:
        self._reports: dict[str, InventoryReport] = {}

    def report(self, request: ReportInventoriesRequest) -> set[str]:
        """Store a report; return the ids of the inventories of which something is new."""
        changed = {each.id for each in request.inventories if self._reports.get(each.id) != each}
        self._reports.update({each.id: each for each in request.inventories})
        return changed

    def forget(self, inventory_ids: Iterable[str]) -> None:
        """Forget the reports on inventories that are gone."""
        for each in inventory_ids:
            self._reports.pop(each, None)

    def find(self, inventory_id: str) -> InventoryReport | None:
        return self._reports.get(inventory_id)
