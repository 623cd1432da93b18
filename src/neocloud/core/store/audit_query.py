"""Audit events, and which of them somebody asks for: a tenant, a span of time, and a condition on columns.

A condition is a tree without any meaning of its own. The store turns it into SQL with bound values; it may
never be text that somebody wrote.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


@dataclass(frozen=True)
class AuditEvent:
    id: str
    at: datetime
    subject: str
    method: str
    parent_id: str
    resource_id: str
    request_id: str
    code: int
    message: str = ""
    request: bytes = b""
    """The request with sensitive fields removed."""
    tenant_id: str = ""
    """The owner of the event: nobody else may see it."""
    hierarchy: str = ""
    """From the tenant down to the resource: a JSON list of [id, name, kind]."""
    resource_kind: str = ""
    resource_name: str = ""
    service: str = ""
    """ "compute": what people call the API that was called."""
    action: str = ""
    """ "create", "list_members": the method, in lower case."""
    type: str = ""
    """ "ai.nebius.compute.disk.create"."""
    status: str = ""
    """STARTED: accepted, an operation is in progress; DONE; ERROR: refused."""
    subject_kind: str = ""
    subject_name: str = ""
    impersonator_id: str = ""
    source_address: str = ""
    user_agent: str = ""
    idempotency_key: str = ""


OBJECT_METHOD = "s3/"
"""How the method of an event of the data plane begins: "s3/PutObject". No method of the API has it."""


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
