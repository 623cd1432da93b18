"""What is legal for an endpoint and a job, put together. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from neocloud.core.capacity import CapacityUse, Rows
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.messages.nebius.ai.v1 import EndpointSpec, JobSpec
from neocloud.services.ai.resources import ENDPOINT, JOB
from neocloud.services.ai.rules.container import container_violations, word_violations
from neocloud.services.ai.rules.offered import not_offered
from neocloud.services.ai.rules.place import default_subnet, hold_filesystems, place_violations
from neocloud.services.compute.public import Demand, check_capacity, preset, preset_violations
from neocloud.services.compute.types import GIB

MOST_ATTEMPTS = 100
SMALLEST_SECONDS = 1


class WorkloadRules(Rules):
    def request_violations(self, request: Any) -> Iterable[Violation]:
        return word_violations(request.spec)

    def violations(self, new: Any, old: Any | None, reader: ResourceReader) -> Iterable[Violation]:
        found = [
            *preset_violations(new.spec.platform, new.spec.preset, "spec"),
            *not_offered(new.spec),
            *container_violations(new.spec, reader),
            *place_violations(new, reader),
            *_sizes(new.spec),
        ]
        if not found:
            check_capacity(reader, new.metadata.id, demands(new.spec), [])
        return found

    def complete(self, new: Any, old: Any | None, reader: ResourceReader) -> None:
        if not new.spec.subnet_id:
            subnet = default_subnet(reader, new.metadata.parent_id)
            assert subnet is not None, "looked at before"
            new.spec.subnet_id = subnet.id
        hold_filesystems(new, reader)


class EndpointRules(WorkloadRules):
    def quota_demand(self, resource: Any) -> Mapping[str, int]:
        """As a machine of its shape, whether it runs or not."""
        shape = preset(resource.spec.platform, resource.spec.preset)
        if shape.gpus:
            return {"ai.endpoint.count": 1, f"compute.instance.gpu.{shape.gpu_type or 'any'}": shape.gpus}
        return {
            "ai.endpoint.count": 1,
            "compute.instance.non-gpu.vcpu": shape.vcpu,
            "compute.instance.non-gpu.memory": shape.memory_gib * GIB,
        }


class JobRules(WorkloadRules):
    def violations(self, new: Any, old: Any | None, reader: ResourceReader) -> Iterable[Violation]:
        spec = new.spec
        if not 0 <= spec.restart_attempts <= MOST_ATTEMPTS:
            yield Violation("spec.restart_attempts", f"must be from 0 to {MOST_ATTEMPTS}")
        if spec.HasField("timeout") and spec.timeout.seconds < SMALLEST_SECONDS:
            yield Violation("spec.timeout", f"must be {SMALLEST_SECONDS} s or more; leave it out for none")
        yield from super().violations(new, old, reader)

    def quota_demand(self, resource: Any) -> Mapping[str, int]:
        """A job that has ended takes nothing but its row, and demand may not follow the state."""
        return {"ai.job.count": 1}


def demands(spec: Any) -> list[Any]:
    """The room that a running one takes."""
    return [(preset(spec.platform, spec.preset), 1)]


def _sizes(spec: Any) -> Iterable[Violation]:
    for field, value in (("shm_size_bytes", spec.shm_size_bytes), ("disk.size_bytes", spec.disk.size_bytes)):
        if value < 0:
            yield Violation(f"spec.{field}", "must be 0 or more")


_AT_REST = frozenset({"STOPPED", "COMPLETED", "FAILED", "CANCELLED"})


def _held(rows: Rows) -> Iterable[tuple[str, Demand]]:
    for kind, spec_class in ((ENDPOINT, EndpointSpec), (JOB, JobSpec)):
        for row in rows[kind]:
            if row.state not in _AT_REST:
                spec = spec_class.FromString(row.spec)
                yield row.id, (preset(spec.platform, spec.preset), 1)


CAPACITY = (CapacityUse((ENDPOINT, JOB), _held),)
