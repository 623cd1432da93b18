"""Validation rules of maintenance: only operators announce it, and once for each resource that it affects.
Pure.
"""

from collections.abc import Iterable
from datetime import timedelta

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.messages.neocloud.operator.v1 import Maintenance, MaintenanceSpec
from neocloud.services.compute.public import MAINTENANCE
from neocloud.services.compute.types import INSTANCE
from neocloud.services.iam.types import require_operator

CREATE = "operator.maintenances.create"
DRAIN_BEFORE = timedelta(minutes=15)
"""How long before its start Slurm workers take no new jobs, where the operator chose nothing."""
LATE = timedelta(minutes=1)
"""How long ago a start may be: the request has taken some time, and clocks differ."""
LONGEST_DRAIN = timedelta(days=1)


class MaintenanceRules(Rules[Maintenance]):
    def defaults(self, resource: Maintenance) -> None:
        if not resource.spec.HasField("drain_before"):
            resource.spec.drain_before.FromTimedelta(DRAIN_BEFORE)

    def violations(
        self, new: Maintenance, old: Maintenance | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        require_operator(reader, new.metadata.parent_id, CREATE)
        spec = new.spec
        if contract.to_datetime(spec.start_at) < reader.now - LATE:
            yield Violation("spec.start_at", "has passed; write a time that is to come, or now")
        if not timedelta(0) <= spec.drain_before.ToTimedelta() <= LONGEST_DRAIN:
            yield Violation("spec.drain_before", "must be between 0 s and 24 h")
        if spec.instance_id and not _is_instance(spec.instance_id, reader):
            yield Violation("spec.instance_id", "names no instance; leave it out for the host")
        for row in reader.list(MAINTENANCE):
            other = MaintenanceSpec.FromString(row.spec).instance_id
            if row.id != new.metadata.id and other in ("", spec.instance_id or other):
                raise contract.bad_state(
                    row.id,
                    f"Maintenance {row.name or row.id} is announced already. Delete it first, which ends it.",
                )


def _is_instance(instance_id: str, reader: ResourceReader) -> bool:
    row = reader.get(instance_id)
    return row is not None and row.kind == INSTANCE and row.deleted_at is None
