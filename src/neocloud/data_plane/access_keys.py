"""Conventions of the control plane and the object gateway about access keys of callers."""

import hashlib
from dataclasses import dataclass

TEMPORARY_KEY_PREFIX = "NCTK"
"""How the ids of temporary keys begin, which are for S3 alone."""


@dataclass(frozen=True)
class KeyLimit:
    """The limits of a key: reading and listing the objects of one bucket below a prefix; of a registry,
    pulling the repository that the prefix stands for.
    """

    bucket_id: str
    prefix: str
    writes: bool = False
    """It creates objects instead, and neither reads nor lists."""
    deletes: bool = False
    """It deletes objects instead, and does nothing else."""
    project_id: str = ""
    """Instead of one bucket: objects in all buckets of this project, and the list of the buckets."""


def repository_limit(repository: str) -> str:
    """Return what a key that pulls one repository of a registry is limited to: names can be longer than the
    limit that the id of a key holds."""
    return hashlib.sha256(repository.encode()).hexdigest()
