# pyright: strict
"""When an inventory is due: at once when it is new, then at midnight (UTC), daily or on Sundays. Pure."""

from datetime import datetime, timedelta

from neocloud.messages.nebius.storage.v1 import InventorySpec

_WEEKLY = InventorySpec.Schedule.Value("WEEKLY")
_SUNDAY = 6


def next_run(last_start: datetime | None, schedule: int) -> datetime | None:
    """Return when the next run is due; None: at once."""
    if last_start is None:
        return None
    midnight = last_start.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    if schedule == _WEEKLY:
        midnight += timedelta(days=(_SUNDAY - midnight.weekday()) % 7)
    return midnight
