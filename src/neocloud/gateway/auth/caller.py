# pyright: strict
"""A caller and its permissions, and the file that keeps known callers.

The file holds hashes of tokens, never tokens. Its times are of the wall clock, since a monotonic clock ends
with its process; a clock that was set back makes an entry too old rather than too young.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from neocloud.core.osfiles import write_file
from neocloud.gateway.api.errors import bad_request, forbidden

INVOKE = "inference.deployments.invoke"


@dataclass(frozen=True)
class Caller:
    """A subject, and its permissions by project."""

    subject_id: str
    subject_name: str
    tenant_id: str
    home_project_id: str
    """Project of requests that name no other one; "" for people."""
    grants: Mapping[str, frozenset[str]]
    proof: str = ""
    """Proof of its token, by which the control plane admits it again, for example while a batch runs."""

    def may(self, permission: str, project_id: str) -> bool:
        return permission in self.grants.get(project_id, ())

    def project(self, asked: str, permission: str) -> str:
        """Return the project of a request; `asked` is its OpenAI-Project header, or "".

        Raises OpenAiError: 403 where the caller lacks the permission, 400 where the project is
        ambiguous.
        """
        possible = [project for project in self.grants if self.may(permission, project)]
        chosen = asked or self.home_project_id or (possible[0] if len(possible) == 1 else "")
        if not chosen and possible:
            raise bad_request(
                f"You have access to several projects ({', '.join(sorted(possible))}). Choose one with the"
                " OpenAI-Project header, or with `project=` of the OpenAI client.",
                param="OpenAI-Project",
            )
        if not chosen or chosen not in possible:
            raise forbidden(
                f"You do not have the permission {permission} in"
                f" {f'the project {chosen}' if chosen else 'any project'}."
            )
        return chosen


logger = logging.getLogger(__name__)


def save_callers(path: Path, callers: Mapping[bytes, tuple[Caller, float]], now: datetime) -> None:
    """Write callers by the hash of their token, with the age of each entry in seconds."""
    content = {
        digest.hex(): {**_to_json(caller), "known_at": now.timestamp() - age}
        for digest, (caller, age) in callers.items()
    }
    write_file(path, json.dumps(content))


def load_callers(path: Path, now: datetime, most_seconds: float) -> Iterator[tuple[bytes, Caller, float]]:
    """Yield (hash, caller, age) of entries that are not too old."""
    try:
        content = json.loads(path.read_text())
        for digest, entry in content.items():
            age = now.timestamp() - entry["known_at"]
            if 0 <= age < most_seconds:
                yield bytes.fromhex(digest), _from_json(entry), age
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("%s cannot be read and is ignored: %s", path, error)


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
