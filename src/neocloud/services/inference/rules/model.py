"""The rules of a model: its name, the source of its weights, its base, and when it may be deleted."""

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.messages.neocloud.inference.v1 import Model, ModelSpec
from neocloud.services.inference.types import (
    DEPLOYMENT,
    FAST_SUFFIX,
    MODEL,
    ModelState,
    names_namespace,
    users_namespace,
)
from neocloud.services.registry.public import ImagePulls
from neocloud.services.storage.public import ObjectReads, folder_place

MAX_PREFIX_BYTES = 1000
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:/-]{0,126}[A-Za-z0-9])?")


class ModelRules(Rules[Model]):
    def quota_demand(self, resource: Model) -> Mapping[str, int]:
        return {"inference.model.count": 1}

    def violations(self, new: Model, old: Model | None, reader: ResourceReader) -> Iterable[Violation]:
        yield from _name_violations(new, old, reader)
        if old is None:
            yield from _source_violations(new, reader)
            yield from _base_violations(new, reader)

    def complete(self, new: Model, old: Model | None, reader: ResourceReader) -> None:
        """Reserve its name in the tenant, and register it with its base."""
        if old is not None:
            return
        tenant_id = tenant_of(new.metadata.parent_id, reader)
        for name in (new.metadata.name, new.metadata.name + FAST_SUFFIX):
            if not reader.reserve(names_namespace(tenant_id), name, new.metadata.id):
                raise contract.already_exists("model", name)
        base_id = new.spec.base_model_id
        if base_id:
            reader.reserve(users_namespace(base_id), new.metadata.id, new.metadata.id)

    def dependents(self, resource: Model) -> Iterable[str]:
        """The base shows its adapters; deployments of a model load adapters that are new in its status."""
        if resource.spec.base_model_id:
            yield resource.spec.base_model_id
        yield from resource.status.deployment_ids

    def check_delete(self, resource: Model, reader: ResourceReader) -> None:
        users = sorted(reader.reservations(users_namespace(resource.metadata.id)))
        if not users:
            return
        rows = [row for row in map(reader.get, users) if row is not None]
        serving = [row.name or row.id for row in rows if row.kind == DEPLOYMENT]
        adapters = [row.name or row.id for row in rows if row.kind == MODEL]
        why = [f"it is served by {', '.join(serving)}"] if serving else []
        why += [f"{', '.join(adapters)} build on it"] if adapters else []
        raise contract.bad_state(
            resource.metadata.id,
            f'Model "{resource.metadata.name}" is in use: {" and ".join(why)}. Delete these first.',
        )


def tenant_of(project_id: str, reader: ResourceReader) -> str:
    row = reader.get(project_id)
    return row.parent_id if row is not None else ""


def _name_violations(new: Model, old: Model | None, reader: ResourceReader) -> Iterable[Violation]:
    name = new.metadata.name
    if old is not None:
        if name != old.metadata.name:
            yield Violation(
                "metadata.name",
                f"cannot be changed, because clients call the model by it; it is {old.metadata.name!r}",
            )
        return
    if not name:
        yield Violation("metadata.name", "is required: clients call the model by its name")
        return
    if not NAME.fullmatch(name):
        yield Violation(
            "metadata.name",
            f"is {name!r}; must be 1 to 128 of letters, digits and . _ : / -, and start and end with a letter"
            " or digit",
        )
        return
    reservations = reader.reservations(names_namespace(tenant_of(new.metadata.parent_id, reader)))
    taken = [
        each for each in (name, name + FAST_SUFFIX) if reservations.get(each, "") not in ("", new.metadata.id)
    ]
    if taken:
        yield Violation(
            "metadata.name",
            f'a model of this tenant is called "{taken[0]}" already (the same name with'
            f' "{FAST_SUFFIX}" is reserved for it); choose another name',
        )


def _source_violations(new: Model, reader: ResourceReader) -> Iterable[Violation]:
    """Raises ApiError unless the caller may read the objects, or pull the artifact, that are named."""
    source = new.spec.source
    kind = source.WhichOneof("source")
    if kind == "object":
        if len(source.object.prefix.encode()) > MAX_PREFIX_BYTES:
            yield Violation("spec.source.object.prefix", f"has more than {MAX_PREFIX_BYTES} bytes")
            return
        place = folder_place(source.object.bucket, source.object.prefix)
        reads = reader.provided.get(ObjectReads)
        reader.write(lambda tx: reads.allow(tx, reader.subject, new.metadata, place))
    if kind == "artifact":
        yield from _artifact_violations(new, reader)
    if kind == "folder" and ".." in PurePosixPath(source.folder).parts:
        yield Violation("spec.source.folder", 'must not contain ".."')


def _artifact_violations(new: Model, reader: ResourceReader) -> Iterable[Violation]:
    field, pulls = "spec.source.artifact.name", reader.provided.get(ImagePulls)
    try:
        name = pulls.name_of(new.spec.source.artifact.name)
    except ValueError as error:
        yield Violation(field, str(error))
        return
    if name is None:
        yield Violation(
            field,
            "is in no registry of this cloud; begin with the status.registry_fqdn of one"
            " (`neo registry registry list`)",
        )
        return
    reader.write(lambda tx: pulls.allow(tx, reader.subject, new.metadata, name))


def _base_violations(new: Model, reader: ResourceReader) -> Iterable[Violation]:
    base_id = new.spec.base_model_id
    if not base_id:
        return
    row = reader.get(base_id)
    tenant = tenant_of(new.metadata.parent_id, reader)
    is_ours = row is not None and row.kind == MODEL and tenant_of(row.parent_id, reader) == tenant
    if row is None or not is_ours or row.deleted_at is not None:
        yield Violation("spec.base_model_id", f'there is no model "{base_id}"; `neo model list` shows them')
    elif ModelSpec.FromString(row.spec).base_model_id:
        yield Violation("spec.base_model_id", f"{row.name} is an adapter itself; name its base model")
    elif row.state != ModelState.READY:
        yield Violation("spec.base_model_id", f"{row.name} is {row.state}, not READY; wait, or fix it first")
