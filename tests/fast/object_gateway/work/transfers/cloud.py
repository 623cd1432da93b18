"""Two object stores, and transfers from the one to the other, which the stand-in control plane lists."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from neocloud.messages.nebius.storage.v1 import TransferIteration, TransferSpec
from neocloud.messages.neocloud.storage.v1 import GatewayTransfer, TransferReport

from neocloud.core import contract
from neocloud.testing.waiting import wait_until
from tests.fast.object_gateway.s3.served import REGION, Served

_NUMBERS = count(1)
ONCE: dict[str, Any] = {"after_one_iteration": {}}


@dataclass
class Transfers:
    """The transfers of a destination store, by default from one other store."""

    destination: Served
    source_url: str
    source: Served
    source_bucket: str = ""
    bucket: str = ""
    secret: str = field(default="", repr=False)

    def start(self, *, source: dict[str, Any] | None = None, **spec: Any) -> str:
        """Have a new transfer run; return its id."""
        transfer_id = f"storagetransfer-e00t{next(_NUMBERS)}"
        owner = self.source.owner
        side = {
            "s3_compatible": {
                "endpoint": self.source_url,
                "region": REGION,
                "bucket_name": self.source_bucket,
                "access_key": {"access_key_id": owner.aws_access_key_id},
            },
            "prefix": spec.pop("source_prefix", ""),
        }
        tenant_id = spec.pop("tenant_id", "tenant-a")
        own = {
            "nebius": {
                "region": REGION,
                "bucket_name": self.bucket,
                "access_key": {"access_key_id": self.destination.owner.aws_access_key_id},
            },
            "prefix": spec.pop("destination_prefix", ""),
        }
        whole = {
            "inter_iteration_interval": "0s",
            "overwrite_strategy": "IF_NEWER",
            **(ONCE if not {"infinite", "after_n_empty_iterations"} & spec.keys() else {}),
            **spec,
            "source": source or side,
            "destination": own,
        }
        desired = GatewayTransfer(
            id=transfer_id,
            mode="RUN",  # type: ignore[arg-type]
            run=1,
            tenant_id=tenant_id,
            spec=contract.from_dict(TransferSpec, whole),
            source_secret=owner.secret,
            destination_secret=self.destination.owner.secret,
        )
        self._put(desired)
        return transfer_id

    def change(
        self,
        transfer_id: str,
        change: Callable[[GatewayTransfer], None],
        before: GatewayTransfer | None = None,
    ) -> None:
        desired = GatewayTransfer()
        desired.CopyFrom(before or self.destination.control_plane.transfer(transfer_id))
        change(desired)
        self._put(desired)

    def _put(self, desired: GatewayTransfer) -> None:
        async def put() -> None:
            self.destination.control_plane.put_transfer(desired)

        self.destination.call(put())

    def when(self, transfer_id: str, holds: Callable[[TransferReport], object]) -> TransferReport:
        """Return the report of a transfer once it `holds` for it."""

        def look() -> TransferReport:
            found = self.destination.control_plane.transfer_reports.get(transfer_id)
            return found if found is not None else TransferReport()

        return wait_until(look, holds=lambda found: found.id and holds(found), poll_seconds=0.01)

    def ended(self, transfer_id: str) -> TransferReport:
        """Return the report of a transfer that has ended by itself."""
        running = TransferReport.Phase.Value("RUNNING")
        return self.when(transfer_id, lambda found: found.phase != running)

    def run(self, **spec: Any) -> TransferIteration:
        """Run one iteration; return it."""
        report = self.ended(self.start(**spec))
        assert phase(report) == "FINISHED", report
        return report.last_iteration

    def failed(self, **spec: Any) -> TransferReport:
        """Run a transfer that fails."""
        report = self.ended(self.start(**spec))
        assert phase(report) == "FAILED", report
        return report

    def stored(self) -> list[str]:
        found = self.destination.client().list_objects_v2(Bucket=self.bucket)
        return [each["Key"] for each in found.get("Contents", [])]

    def body(self, key: str) -> bytes:
        return self.destination.client().get_object(Bucket=self.bucket, Key=key)["Body"].read()

    def tags(self, key: str) -> dict[str, str]:
        found = self.destination.client().get_object_tagging(Bucket=self.bucket, Key=key)
        return {each["Key"]: each["Value"] for each in found["TagSet"]}

    def put(self, key: str, body: bytes = b"content", **more: Any) -> None:
        """Put an object into the source."""
        self.source.client().put_object(Bucket=self.source_bucket, Key=key, Body=body, **more)


def phase(report: TransferReport) -> str:
    return TransferReport.Phase.Name(report.phase)


def outcome(iteration: TransferIteration) -> str:
    return TransferIteration.State.Name(iteration.state)


def numbers(iteration: TransferIteration) -> tuple[int, int, int]:
    """Return how many objects were transferred, with how many bytes, and how many were deleted."""
    return (
        iteration.objects_transferred_count,
        iteration.objects_transferred_size,
        iteration.objects_deleted_count,
    )
