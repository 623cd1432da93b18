"""Rules of a release: two models that are served, of one task, and one active release of a model."""

from collections.abc import Iterable, Mapping

from neocloud.core import wire
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource
from neocloud.messages.neocloud.inference.v1 import (
    Deployment,
    ModelSpec,
    Release,
    ReleaseStatus,
)
from neocloud.services.inference.rules.model import tenant_of
from neocloud.services.inference.types import (
    ACTIVE_RELEASE,
    DEPLOYMENT,
    MODEL,
    ReleaseState,
    called_name,
    is_withheld,
    releases_namespace,
    task_name,
)

MOST_FAILED_PERCENT = 5
LEAST_REQUESTS = 20


class ReleaseRules(Rules[Release]):
    def defaults(self, resource: Release) -> None:
        spec = resource.spec
        spec.most_failed_percent = spec.most_failed_percent or MOST_FAILED_PERCENT
        spec.least_requests = spec.least_requests or LEAST_REQUESTS

    def quota_demand(self, resource: Release) -> Mapping[str, int]:
        return {"inference.release.count": 1}

    def violations(self, new: Release, old: Release | None, reader: ResourceReader) -> Iterable[Violation]:
        if old is not None:
            state = ReleaseStatus.State.Name(old.status.state)
            if state != ReleaseState.ACTIVE and new.spec != old.spec:
                yield Violation("spec.share_percent", f"the release is {state}; create another")
            return
        if not new.metadata.name:
            yield Violation("metadata.name", "is required: a release is promoted by its name")
        if new.spec.model_id == new.spec.candidate_model_id:
            yield Violation("spec.candidate_model_id", "is the model itself; name another one")
            return
        served: list[str] = []
        for field in ("model_id", "candidate_model_id"):
            row = reader.get(getattr(new.spec, field))
            problem, task = _served(row, new, reader)
            served.append(task)
            if problem:
                yield Violation(f"spec.{field}", problem)
        if all(served) and served[0] != served[1]:
            yield Violation(
                "spec.candidate_model_id",
                f"is served for the task {served[1]}, and the model for {served[0]}; their answers differ",
            )
        holder = reader.reservations(releases_namespace(new.spec.model_id)).get(ACTIVE_RELEASE, "")
        if holder not in ("", new.metadata.id):
            other = reader.get(holder)
            name = other.name if other is not None else holder
            yield Violation(
                "spec.model_id",
                f"the release {name} of this model is active; promote it, roll it back or delete it first",
            )

    def complete(self, new: Release, old: Release | None, reader: ResourceReader) -> None:
        if old is None:
            new.status.state = ReleaseStatus.ACTIVE
            reader.reserve(releases_namespace(new.spec.model_id), ACTIVE_RELEASE, new.metadata.id)


def _served(row: Resource | None, new: Release, reader: ResourceReader) -> tuple[str, str]:
    """Return why the model cannot take part, and the task it is served for.

    Both models are of the release's own project: names are of the tenant, and who may make releases in one
    project must not get the requests of another.
    """
    project_id = new.metadata.parent_id
    tenant = tenant_of(project_id, reader)
    if row is None or row.kind != MODEL or row.deleted_at or row.parent_id != project_id:
        return "there is no such model; `neo model list` shows them", ""
    if is_withheld(ModelSpec.FromString(row.spec)):
        return f"{row.name} failed the gate of its fine-tuning job, so it is not served", ""
    for each in reader.list(DEPLOYMENT):
        deployment: Deployment = wire.resource_message(each)
        is_ours = each.deleted_at is None and tenant_of(each.parent_id, reader) == tenant
        if is_ours and called_name(row.name, deployment.spec) in deployment.status.served_names:
            return "", task_name(deployment.spec)
    return f"{row.name} is not served; deploy it first (`neo deployment list`)", ""
