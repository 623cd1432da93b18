"""The capacity that a replica reserves is a ReplicaReservation; it was called a Place before."""

from alembic import op

revision = "0006"
down_revision = "0005"

_OLD, _NEW = "neocloud.inference.v1.Place", "neocloud.inference.v1.ReplicaReservation"


def upgrade() -> None:
    for table in ("resources", "queue", "history"):
        op.execute(f"UPDATE {table} SET kind = '{_NEW}' WHERE kind = '{_OLD}'")  # nosec B608
