"""The kind, its states, and the id of an allowance, which names its container and quota."""

import hashlib

from neocloud.messages.nebius.quotas.v1 import QuotaAllowanceStatus

ALLOWANCE = "nebius.quotas.v1.QuotaAllowance"
SERVICE_NAME = "nebius.quotas.v1.QuotaAllowanceService"
State = QuotaAllowanceStatus.State
UsageState = QuotaAllowanceStatus.UsageState

ACTIVE = "STATE_ACTIVE"

_PREFIX = "quotaallowance-"
_DIGEST_LENGTH = 12


def allowance_id(parent_id: str, name: str) -> str:
    """Return the id of an allowance. It is computed and needs no row: every container has every quota."""
    kind, _, rest = parent_id.partition("-")
    routing, weak = rest[:3], rest[3:].removeprefix("-")
    digest = hashlib.sha256(f"{parent_id}\0{name}".encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{_PREFIX}{routing}{kind}-{weak}-{digest}"


def parent_of(allowance: str) -> str:
    """Return the id of the container that an allowance's id names; "" when it is not such an id."""
    body = allowance.removeprefix(_PREFIX)
    routing, rest = body[:3], body[3:]
    kind, _, weak_and_digest = rest.partition("-")
    weak, _, digest = weak_and_digest.rpartition("-")
    is_one = allowance.startswith(_PREFIX) and kind in ("tenant", "project") and weak and digest
    return f"{kind}-{routing}{weak}" if is_one else ""
