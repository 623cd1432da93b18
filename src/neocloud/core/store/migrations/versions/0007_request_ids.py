"""The id of the request that caused an operation. Operations of older releases have none."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("operations", sa.Column("request_id", sa.Text(), server_default="", nullable=False))
