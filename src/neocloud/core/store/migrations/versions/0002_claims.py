"""Claims: values that only one resource may hold at a time, e.g. an address in a subnet."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "claims",
        sa.Column("space", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("resource_id", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("space", "value"),
    )
    op.create_index("claims_by_resource", "claims", ["resource_id"])
