"""Which audit events somebody asks for: a tenant, a span of time, and a condition on columns.

A condition is a tree without any meaning of its own. The store turns it into SQL with bound values; it may
never be text that somebody wrote.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Test(StrEnum):
    EQUALS = "equals"
    CONTAINS = "contains"


@dataclass(frozen=True)
class Is:
    """A column is, or contains, this text. Upper and lower case differ."""

    column: str
    test: Test
    value: str


@dataclass(frozen=True)
class AllOf:
    parts: tuple["Condition", ...]


@dataclass(frozen=True)
class AnyOf:
    parts: tuple["Condition", ...]


@dataclass(frozen=True)
class Not:
    part: "Condition"


Condition = Is | AllOf | AnyOf | Not
EVERYTHING = AllOf(())


@dataclass(frozen=True)
class AuditQuery:
    tenant_id: str
    start: datetime | None = None
    end: datetime | None = None
    """Not included."""
    condition: Condition = EVERYTHING
    is_ascending: bool = False
    """Oldest first."""
