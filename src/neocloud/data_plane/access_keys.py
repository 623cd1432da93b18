# pyright: strict
"""Conventions of the control plane and the object gateway about access keys of callers."""

import hashlib

TEMPORARY_KEY_PREFIX = "NCTK"
"""How the ids of temporary keys begin, which are for S3 alone."""


def repository_limit(repository: str) -> str:
    """Return what a key that pulls one repository of a registry is limited to: names can be longer than the
    limit that the id of a key holds."""
    return hashlib.sha256(repository.encode()).hexdigest()
