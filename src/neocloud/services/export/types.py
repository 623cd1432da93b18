"""Export rules: kind, states, the periods of their schedules, and whom they act as. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from neocloud.core.store.protocol import Transaction
from neocloud.messages.neocloud.export.v1 import ExportRuleSpec, ExportRuleStatus
from neocloud.services.audit.public import LIST_PERMISSION
from neocloud.services.billing.types import REPORT_PERMISSION

RULE = "neocloud.export.v1.ExportRule"
RULE_ID_PREFIX = "exportrule"
Content = ExportRuleSpec.Content
AUDIT_LOG, FOCUS_BILL = Content.Value("AUDIT_LOG"), Content.Value("FOCUS_BILL")
StateEnum = ExportRuleStatus.State
PERMISSIONS: Mapping[int, str] = {AUDIT_LOG: LIST_PERMISSION, FOCUS_BILL: REPORT_PERMISSION}
"""Permissions that the account of a rule needs on the source, by content."""
_ACTOR = "export-rule"
_HOURLY = ExportRuleSpec.Schedule.Value("HOURLY")
_NAMES: Mapping[int, tuple[str, str]] = {AUDIT_LOG: ("audit", "jsonl"), FOCUS_BILL: ("focus", "csv")}


class ExportState(StrEnum):
    ACTIVE = "ACTIVE"
    FAILED = "FAILED"
    DELETING = "DELETING"


@dataclass(frozen=True)
class Period:
    start: datetime
    end: datetime

    def object_name(self, content: int) -> str:
        first, last = _NAMES[content]
        return f"{first}-{self.start:%Y%m%dT%H%M%SZ}-{self.end:%Y%m%dT%H%M%SZ}.{last}"


def period_with(schedule: int, at: datetime) -> Period:
    """Return the hour or the day (UTC) with this moment."""
    hour = at.replace(minute=0, second=0, microsecond=0)
    if schedule == _HOURLY:
        return Period(hour, hour + timedelta(hours=1))
    day = hour.replace(hour=0)
    return Period(day, day + timedelta(days=1))


def read_actor(tx: Transaction, rule_id: str) -> str:
    """Return the id of the account that a rule acts as; "" where it is not known."""
    return (tx.secret(rule_id, _ACTOR) or b"").decode()


def write_actor(tx: Transaction, rule_id: str, subject_id: str) -> None:
    tx.put_secret(rule_id, _ACTOR, subject_id.encode())
