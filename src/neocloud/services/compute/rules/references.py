"""Looking up what a spec names: only what lies in the same project counts, the rest does not exist. Pure."""

from neocloud.core.kind import Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource


def find(reader: ResourceReader, kind: str, resource_id: str, parent_id: str) -> Resource | None:
    """The live resource of this kind and project."""
    row = reader.get(resource_id)
    is_there = row is not None and row.kind == kind and row.parent_id == parent_id and not row.deleted_at
    return row if is_there else None


def missing(field: str, kind: str, resource_id: str) -> Violation:
    """The same words for what does not exist and for what lies in a project of somebody else."""
    word = kind.rpartition(".")[2]
    return Violation(field, f'there is no {word} "{resource_id}" in this project; check the id')
