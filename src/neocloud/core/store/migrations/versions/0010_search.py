"""The index that keeps names unique also finds a name in a parent, whatever the kind."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.drop_index("resources_by_name", table_name="resources")
    op.create_index(
        "resources_by_name",
        "resources",
        ["parent_id", "name", "kind"],
        unique=True,
        sqlite_where=sa.text("name <> ''"),
        postgresql_where=sa.text("name <> ''"),
    )
