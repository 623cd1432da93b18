"""Stores of the tests, with their metadata in SQLite or in PostgreSQL."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from neocloud.core.osfiles import create_file
from tests.fast.core.conftest import new_database, postgres  # noqa: F401  fixtures
from tests.fast.object_store import stores


@pytest.fixture(scope="session")
def objects_database(new_database: Callable[[], str]) -> str:  # noqa: F811
    return new_database()


@pytest.fixture
def postgresql_metadata(objects_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Gives a file with the address of a database without tables, where the test's stores have metadata."""
    file = tmp_path_factory.mktemp("address") / "url"
    create_file(file, objects_database)
    stores.empty(file)
    stores.metadata = file
    yield file
    stores.metadata = None


@pytest.fixture(params=["sqlite", "postgresql"])
def metadata(request: pytest.FixtureRequest) -> Path | None:
    """Gives the file with the address of the metadata of the test's stores; None: they are in SQLite."""
    return None if request.param == "sqlite" else request.getfixturevalue("postgresql_metadata")
