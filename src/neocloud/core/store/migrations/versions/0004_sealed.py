"""Record the sealed parts of each kind. Older releases, which could not read them, are refused."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "sealed",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("part", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "part"),
    )
