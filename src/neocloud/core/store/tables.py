"""The tables, as SQLAlchemy Core sees them, the same on SQLite and PostgreSQL.

Times are whole microseconds since 1970 (UTC): they compare, sort and survive both databases unchanged.
`seq` orders rows by insertion and is what pages are cut by. Schedules change far more often than
descriptions, so `queue` is apart from `resources`.

Change nothing here without a migration: a test compares these tables with what the migrations build.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)

metadata = MetaData()

Sequence64 = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself only for a column of type INTEGER."""


def _seq() -> Column[int]:
    return Column("seq", Sequence64, primary_key=True, autoincrement=True)


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False, server_default="")


resources = Table(
    "resources",
    metadata,
    _seq(),
    Column("id", Text, nullable=False, unique=True),
    _text("kind"),
    _text("parent_id"),
    _text("name"),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("resource_version", BigInteger, nullable=False),
    _text("labels"),
    Column("spec", LargeBinary, nullable=False),
    Column("status", LargeBinary, nullable=False),
    _text("state"),
    _text("owner_id"),
    _text("finalizers"),
    Column("deleted_at", BigInteger),
    Column("observed_version", BigInteger, nullable=False),
    Index("resources_by_kind", "kind", "seq"),
    Index("resources_by_parent", "parent_id", "kind", "seq"),
    Index(
        "resources_by_owner",
        "owner_id",
        sqlite_where=text("owner_id <> ''"),
        postgresql_where=text("owner_id <> ''"),
    ),
    Index(
        "resources_by_name",
        "parent_id",
        "name",
        "kind",
        unique=True,
        sqlite_where=text("name <> ''"),
        postgresql_where=text("name <> ''"),
    ),
    sqlite_autoincrement=True,
)

queue = Table(
    "queue",
    metadata,
    Column("resource_id", Text, ForeignKey("resources.id", ondelete="CASCADE"), primary_key=True),
    _text("kind"),
    Column("due_at", BigInteger),
    _text("lease_token"),
    Column("lease_until", BigInteger),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Index("queue_by_due", "kind", "due_at"),
    Index(
        "queue_by_lease",
        "lease_until",
        sqlite_where=text("lease_until IS NOT NULL"),
        postgresql_where=text("lease_until IS NOT NULL"),
    ),
)

operations = Table(
    "operations",
    metadata,
    _seq(),
    Column("id", Text, nullable=False, unique=True),
    _text("resource_id"),
    _text("resource_kind"),
    _text("parent_id"),
    _text("method"),
    _text("description"),
    _text("created_by"),
    Column("created_at", BigInteger, nullable=False),
    Column("resource_version", BigInteger, nullable=False),
    Column("request", LargeBinary, nullable=False),
    _text("request_headers"),
    Column("finished_at", BigInteger),
    Column("code", Integer),
    _text("message"),
    Column("details", LargeBinary, nullable=False),
    _text("progress"),
    _text("request_id"),
    Index("operations_by_resource", "resource_id", "seq"),
    Index("operations_by_parent", "parent_id", "resource_kind", "seq"),
    Index(
        "operations_unfinished",
        "resource_id",
        sqlite_where=text("code IS NULL"),
        postgresql_where=text("code IS NULL"),
    ),
    sqlite_autoincrement=True,
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("subject", Text, primary_key=True),
    Column("method", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    _text("request_hash"),
    Column("response", LargeBinary, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index("idempotency_by_age", "created_at"),
)

audit = Table(
    "audit",
    metadata,
    _seq(),
    Column("id", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    _text("subject"),
    _text("method"),
    _text("parent_id"),
    _text("resource_id"),
    _text("request_id"),
    Column("code", Integer, nullable=False),
    _text("message"),
    Column("request", LargeBinary, nullable=False),
    _text("tenant_id"),
    _text("hierarchy"),
    _text("resource_kind"),
    _text("resource_name"),
    _text("service"),
    _text("action"),
    _text("type"),
    _text("status"),
    _text("subject_kind"),
    _text("subject_name"),
    _text("impersonator_id"),
    _text("source_address"),
    _text("user_agent"),
    _text("idempotency_key"),
    Index("audit_by_parent", "parent_id", "seq"),
    Index("audit_by_resource", "resource_id", "seq"),
    Index("audit_by_tenant", "tenant_id", "at", "seq"),
    Index("audit_by_age", "at"),
    sqlite_autoincrement=True,
)

history = Table(
    "history",
    metadata,
    _seq(),
    _text("resource_id"),
    _text("kind"),
    _text("parent_id"),
    _text("name"),
    Column("at", BigInteger, nullable=False),
    _text("state"),
    Column("resource_version", BigInteger, nullable=False),
    Column("spec", LargeBinary, nullable=False),
    _text("labels"),
    Column("is_deleted", Boolean, nullable=False),
    Index("history_by_resource", "resource_id", "at"),
    Index("history_by_kind", "kind", "at"),
    Index("history_by_parent", "parent_id", "at"),
    sqlite_autoincrement=True,
)

secrets = Table(
    "secrets",
    metadata,
    Column("resource_id", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

sealed = Table(
    "sealed",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("part", Text, primary_key=True),
)
"""Kinds whose rows were all looked through: none has this part in plain."""

claims = Table(
    "claims",
    metadata,
    Column("space", Text, primary_key=True),
    Column("value", Text, primary_key=True),
    _text("resource_id"),
    Index("claims_by_resource", "resource_id"),
)

counters = Table(
    "counters",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("amount", BigInteger, nullable=False),
)

marks = Table(
    "marks",
    metadata,
    Column("space", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("amount", BigInteger, nullable=False),
    Column("until", BigInteger, nullable=False),
    Index("marks_by_end", "space", "until"),
)

events = Table(
    "events",
    metadata,
    Column("log", Text, primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    _text("subject"),
    Column("at", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("events_by_subject", "log", "subject", "position"),
)
"""Logs of events that are only appended; `position` counts from 1 in each."""

event_archives = Table(
    "event_archives",
    metadata,
    Column("log", Text, primary_key=True),
    Column("last", BigInteger, primary_key=True, autoincrement=False),
    Column("first", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
"""The oldest events of logs, many in one compressed row: those from `first` to `last`."""

event_snapshots = Table(
    "event_snapshots",
    metadata,
    Column("log", Text, primary_key=True),
    Column("position", BigInteger, nullable=False),
    _text("version"),
    Column("body", LargeBinary, nullable=False),
)
"""The state that a reader has made of a log up to an event. It can be made again from the events at any time.
"""
