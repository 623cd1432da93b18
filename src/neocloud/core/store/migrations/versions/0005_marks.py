"""Marks: small numbers that end by themselves, such as wrong passwords of an address and used-up tokens."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "marks",
        sa.Column("space", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("space", "name"),
    )
    op.create_index("marks_by_end", "marks", ["space", "until"])
    # Wrong passwords were counted in these; the longest lock lasted 15 minutes.
    op.execute("DELETE FROM secrets WHERE resource_id = 'iam' AND name LIKE 'attempts/%'")
