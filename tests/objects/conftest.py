"""Stores of the tests, with their metadata in SQLite or in PostgreSQL."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from neocloud.objects.metadata.postgres import SCHEMA
from tests.core.conftest import new_database, postgres  # noqa: F401  fixtures
from tests.objects import stores


@pytest.fixture(scope="session")
def objects_database(new_database: Callable[[], str]) -> str:  # noqa: F811
    return new_database()


@pytest.fixture
def postgresql_metadata(objects_database: str) -> Iterator[str]:
    """Gives the address of a database without tables, in which the test's stores have their metadata."""
    with psycopg.connect(objects_database, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE".encode())
    stores.metadata = objects_database
    yield objects_database
    stores.metadata = ""


@pytest.fixture(params=["sqlite", "postgresql"])
def metadata(request: pytest.FixtureRequest) -> str:
    """Gives the address of the metadata of the test's stores; "": files in their folders."""
    return "" if request.param == "sqlite" else request.getfixturevalue("postgresql_metadata")
