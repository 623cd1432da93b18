"""Counters that are kept in the transaction of what they count, and who, whence and where of audit events."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_AUDIT_TEXTS = (
    "tenant_id",
    "hierarchy",
    "resource_kind",
    "resource_name",
    "service",
    "action",
    "type",
    "status",
    "subject_kind",
    "subject_name",
    "impersonator_id",
    "source_address",
    "user_agent",
    "idempotency_key",
)


def upgrade() -> None:
    op.create_table(
        "counters",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "name"),
    )
    for name in _AUDIT_TEXTS:
        op.add_column("audit", sa.Column(name, sa.Text(), server_default="", nullable=False))
    op.create_index("audit_by_tenant", "audit", ["tenant_id", "at", "seq"])
    op.create_index("audit_by_age", "audit", ["at"])
