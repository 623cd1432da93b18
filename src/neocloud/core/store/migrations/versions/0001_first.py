# pyright: standard
"""The first schema: resources and their queue, operations, idempotency keys, audit, history, secrets."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def _seq() -> sa.Column:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column("seq", number, autoincrement=True, nullable=False)


def _text(name: str) -> sa.Column:
    return sa.Column(name, sa.Text(), server_default="", nullable=False)


def _only(condition: Any) -> dict[str, Any]:
    return {"sqlite_where": condition, "postgresql_where": condition}


def upgrade() -> None:
    _create_resources()
    _create_queue()
    _create_operations()
    _create_idempotency()
    _create_audit()
    _create_history()
    _create_secrets()


def _create_resources() -> None:
    op.create_table(
        "resources",
        _seq(),
        sa.Column("id", sa.Text(), nullable=False),
        _text("kind"),
        _text("parent_id"),
        _text("name"),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("resource_version", sa.BigInteger(), nullable=False),
        _text("labels"),
        sa.Column("spec", sa.LargeBinary(), nullable=False),
        sa.Column("status", sa.LargeBinary(), nullable=False),
        _text("state"),
        _text("owner_id"),
        _text("finalizers"),
        sa.Column("deleted_at", sa.BigInteger(), nullable=True),
        sa.Column("observed_version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("resources_by_kind", "resources", ["kind", "seq"])
    op.create_index(
        "resources_by_name",
        "resources",
        ["kind", "parent_id", "name"],
        unique=True,
        **_only(sa.text("name <> ''")),
    )
    op.create_index("resources_by_owner", "resources", ["owner_id"], **_only(sa.text("owner_id <> ''")))
    op.create_index("resources_by_parent", "resources", ["parent_id", "kind", "seq"])


def _create_queue() -> None:
    op.create_table(
        "queue",
        sa.Column("resource_id", sa.Text(), nullable=False),
        _text("kind"),
        sa.Column("due_at", sa.BigInteger(), nullable=True),
        _text("lease_token"),
        sa.Column("lease_until", sa.BigInteger(), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(["resource_id"], ["resources.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("resource_id"),
    )
    op.create_index("queue_by_due", "queue", ["kind", "due_at"])
    op.create_index("queue_by_lease", "queue", ["lease_until"], **_only(sa.text("lease_until IS NOT NULL")))


def _create_operations() -> None:
    op.create_table(
        "operations",
        _seq(),
        sa.Column("id", sa.Text(), nullable=False),
        _text("resource_id"),
        _text("resource_kind"),
        _text("parent_id"),
        _text("method"),
        _text("description"),
        _text("created_by"),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("resource_version", sa.BigInteger(), nullable=False),
        sa.Column("request", sa.LargeBinary(), nullable=False),
        _text("request_headers"),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("code", sa.Integer(), nullable=True),
        _text("message"),
        sa.Column("details", sa.LargeBinary(), nullable=False),
        _text("progress"),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("operations_by_parent", "operations", ["parent_id", "resource_kind", "seq"])
    op.create_index("operations_by_resource", "operations", ["resource_id", "seq"])
    op.create_index("operations_unfinished", "operations", ["resource_id"], **_only(sa.text("code IS NULL")))


def _create_idempotency() -> None:
    op.create_table(
        "idempotency",
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        _text("request_hash"),
        sa.Column("response", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("subject", "method", "key"),
    )
    op.create_index("idempotency_by_age", "idempotency", ["created_at"])


def _create_audit() -> None:
    op.create_table(
        "audit",
        _seq(),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        _text("subject"),
        _text("method"),
        _text("parent_id"),
        _text("resource_id"),
        _text("request_id"),
        sa.Column("code", sa.Integer(), nullable=False),
        _text("message"),
        sa.Column("request", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
        sqlite_autoincrement=True,
    )
    op.create_index("audit_by_parent", "audit", ["parent_id", "seq"])
    op.create_index("audit_by_resource", "audit", ["resource_id", "seq"])


def _create_history() -> None:
    op.create_table(
        "history",
        _seq(),
        _text("resource_id"),
        _text("kind"),
        _text("parent_id"),
        _text("name"),
        sa.Column("at", sa.BigInteger(), nullable=False),
        _text("state"),
        sa.Column("resource_version", sa.BigInteger(), nullable=False),
        sa.Column("spec", sa.LargeBinary(), nullable=False),
        _text("labels"),
        sa.Column("is_deleted", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
        sqlite_autoincrement=True,
    )
    op.create_index("history_by_kind", "history", ["kind", "at"])
    op.create_index("history_by_parent", "history", ["parent_id", "at"])
    op.create_index("history_by_resource", "history", ["resource_id", "at"])


def _create_secrets() -> None:
    op.create_table(
        "secrets",
        sa.Column("resource_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("resource_id", "name"),
    )
