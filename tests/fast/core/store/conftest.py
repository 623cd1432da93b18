from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from neocloud.core.store import Store, open_store
from neocloud.testing.waiting import FakeClock

KEY = bytes(32)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["sqlite", "memory", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "sqlite":
            return str(tmp_path / "state.db")
        case "memory":
            return ":memory:"
    return request.getfixturevalue("empty_database")


@pytest.fixture
async def store(address: str, clock: FakeClock) -> AsyncIterator[Store]:
    opened = await open_store(address, KEY, clock)
    yield opened
    await opened.close()
