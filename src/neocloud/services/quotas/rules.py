"""The quotas and their default limits, from quotas.yaml, and computations over them; the kind, its states,
and the id of an allowance, which names its container and quota. Pure.

A limit that was set is an allowance, a row of its own. Without one, the default of the file applies.
"""

import difflib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from importlib.resources import files
from pathlib import Path

import yaml

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


MAX_LIMIT = (1 << 63) - 1
UNITS = ("count", "byte")


class QuotaFileError(Exception):
    """The file cannot be used. The message says where it is wrong and how to correct it."""


@dataclass(frozen=True)
class Quota:
    name: str
    limit: int
    unit: str
    title: str
    service: str
    service_title: str


class Quotas(dict[str, Quota]):
    """All quotas by name."""


def load_quotas(path: Path | None) -> Quotas:
    """Return all quotas by name; the built-in ones when no file is given. Raises QuotaFileError."""
    if path is None:
        return default_quotas()
    try:
        return parse_quotas(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise QuotaFileError(f"Cannot read the quotas {path}: {error}. Check --quota-file.") from error


@cache
def default_quotas() -> Quotas:
    text = files("neocloud.services.quotas").joinpath("quotas.yaml").read_text(encoding="utf-8")
    return parse_quotas(text, "quotas.yaml")


def parse_quotas(text: str, source: str) -> Quotas:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise QuotaFileError(f"{source} is not YAML: {error}") from error
    try:
        found = [_quota(service, entry) for service in content for entry in service["quotas"]]
    except (TypeError, KeyError):
        raise QuotaFileError(
            f"{source} must be a list of services, each with service, title and quotas, each of those with "
            "name, limit and title. Start from a copy of the built-in quotas.yaml."
        ) from None
    except QuotaFileError as error:
        raise QuotaFileError(f"{source}: {error}") from None
    by_name = {quota.name: quota for quota in found}
    if len(by_name) < len(found):
        raise QuotaFileError(f"{source} has the same name twice. Remove one of the two.")
    return Quotas(by_name)


def _quota(service: Mapping[str, object], entry: Mapping[str, object]) -> Quota:
    name, limit, unit = str(entry["name"]), entry["limit"], str(entry.get("unit", "count"))
    if type(limit) is not int or not 0 <= limit <= MAX_LIMIT:
        raise QuotaFileError(f"{name}: limit must be a whole number from 0 to {MAX_LIMIT}, not {limit!r}")
    if unit not in UNITS:
        raise QuotaFileError(f"{name}: unit must be {' or '.join(UNITS)}, not {unit!r}")
    return Quota(name, limit, unit, str(entry["title"]), str(service["service"]), str(service["title"]))


def unknown_name(quotas: Quotas, name: str) -> str:
    """Return the error text for a quota that does not exist."""
    close = difflib.get_close_matches(name, quotas, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else "`neo quota list` shows all"
    return f"is {name!r}, and there is no such quota; {hint}"


def usage_percentage(usage: int, limit: int) -> str:
    """Return usage as a share of the limit in the contract's form: "0.12", and more than "1.0" above the
    limit."""
    if not limit:
        return "0.0" if not usage else "1.0"
    share = (Decimal(usage) / Decimal(limit)).quantize(Decimal("0.01"), rounding=ROUND_HALF_UP)
    return f"{share.normalize():f}" if share % 1 else f"{share:.1f}"


def amount(value: int, unit: str) -> str:
    """Return an amount for people: "12", or "1.5 TiB" for bytes."""
    if unit != "byte":
        return str(value)
    size, names = Decimal(value), ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
    for name in names[:-1]:
        if size < 1024:
            return f"{_short(size)} {name}"
        size /= 1024
    return f"{_short(size)} {names[-1]}"


def _short(size: Decimal) -> str:
    return f"{size.quantize(Decimal('0.1'), rounding=ROUND_HALF_UP):f}".removesuffix(".0")
