"""When inventories are due."""

from datetime import UTC, datetime

import pytest
from neocloud.messages.nebius.storage.v1 import InventorySpec

from neocloud.object_gateway.work.inventories.schedule import next_run

SATURDAY, SUNDAY, NEXT_SUNDAY = (datetime(2026, 11, day, tzinfo=UTC) for day in (28, 22, 29))


@pytest.mark.parametrize("name", ["DAILY", "WEEKLY"])
def test_a_new_inventory_is_due_at_once(name: str) -> None:
    assert next_run(None, InventorySpec.Schedule.Value(name)) is None


@pytest.mark.parametrize(
    ("name", "last", "due"),
    [
        ("DAILY", datetime(2026, 11, 28, 23, 59, 59, 999_000, UTC), NEXT_SUNDAY),
        ("DAILY", SATURDAY, NEXT_SUNDAY),
        ("WEEKLY", datetime(2026, 11, 26, 15, 4, tzinfo=UTC), NEXT_SUNDAY),
        ("WEEKLY", datetime(2026, 11, 28, 23, 59, tzinfo=UTC), NEXT_SUNDAY),
        ("WEEKLY", SUNDAY, NEXT_SUNDAY),
        ("DAILY", datetime(2026, 12, 31, 12, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)),
    ],
)
def test_it_is_due_at_the_next_midnight_or_sunday(name: str, last: datetime, due: datetime) -> None:
    found = next_run(last, InventorySpec.Schedule.Value(name))
    assert found is not None and last < found == due
