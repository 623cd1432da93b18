"""Old events of logs in compressed rows, and what readers have made of logs."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "event_archives",
        sa.Column("log", sa.Text(), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("log", "last"),
    )
    op.create_table(
        "event_snapshots",
        sa.Column("log", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Text(), server_default="", nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("log"),
    )
