"""Digests as registries of images write them: an algorithm, ":", and hexadecimal digits. Pure."""

import hashlib
import re
from typing import Any

PATTERN = r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}"
"""The digests that are taken."""
DEFAULT = "sha256"
ALGORITHMS = ("sha256", "sha512")
_DIGEST = re.compile(PATTERN)


def is_digest(value: object) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def algorithm_of(digest: str) -> str:
    return digest.partition(":")[0]


def running(algorithm: str = DEFAULT) -> Any:
    """Return the hash of bytes that are still coming, by one of ALGORITHMS."""
    return hashlib.sha512() if algorithm == "sha512" else hashlib.sha256()


def written(hashed: Any) -> str:
    """Return the digest of what a hash has got."""
    return f"{hashed.name}:{hashed.hexdigest()}"


def digest_of(content: bytes, algorithm: str = DEFAULT) -> str:
    hashed = running(algorithm)
    hashed.update(content)
    return written(hashed)
