"""Callers as they were known last, on disk: a gateway that starts without the control plane still knows them.

Hashes of tokens and what they may do, never tokens. The times are the wall clock's, as a process's own clock
ends with it; a clock that was set back makes an entry too old rather than too young.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from neocloud.core.osfiles import write_file
from neocloud.gateway.callers import Caller

logger = logging.getLogger(__name__)


def keep(path: Path, callers: Mapping[bytes, tuple[Caller, float]], now: datetime) -> None:
    """`callers` by the hash of their token, with the age of what is known in seconds."""
    content = {
        digest.hex(): {**_to_json(caller), "known_at": now.timestamp() - age}
        for digest, (caller, age) in callers.items()
    }
    write_file(path, json.dumps(content))


def load(path: Path, now: datetime, most_seconds: float) -> Iterator[tuple[bytes, Caller, float]]:
    """(hash, caller, age) of those that are not too old."""
    try:
        content = json.loads(path.read_text())
        for digest, entry in content.items():
            age = now.timestamp() - entry["known_at"]
            if 0 <= age < most_seconds:
                yield bytes.fromhex(digest), _from_json(entry), age
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("%s is left aside, it cannot be read: %s", path, error)


def _to_json(caller: Caller) -> dict[str, Any]:
    grants = {project: sorted(permissions) for project, permissions in caller.grants.items()}
    return {
        "subject_id": caller.subject_id,
        "subject_name": caller.subject_name,
        "tenant_id": caller.tenant_id,
        "home_project_id": caller.home_project_id,
        "grants": grants,
        "proof": caller.proof,
    }


def _from_json(entry: Mapping[str, Any]) -> Caller:
    return Caller(
        subject_id=entry["subject_id"],
        subject_name=entry["subject_name"],
        tenant_id=entry["tenant_id"],
        home_project_id=entry["home_project_id"],
        grants={project: frozenset(permissions) for project, permissions in entry["grants"].items()},
        proof=entry.get("proof", ""),
    )
