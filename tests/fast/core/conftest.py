"""PostgreSQL for the tests of the core: one server for the whole run."""

import itertools
from collections.abc import Callable, Iterator

import psycopg
import pytest

from neocloud.testing.postgres import running_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    with running_postgres() as address:
        yield address


@pytest.fixture(scope="session")
def new_database(postgres: str) -> Callable[[], str]:
    """Makes an empty database and gives its address."""
    numbers = itertools.count()

    def create() -> str:
        name = f"test{next(numbers)}"
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
        return postgres.replace("/postgres?", f"/{name}?")

    return create


@pytest.fixture(scope="session")
def shared_database(new_database: Callable[[], str]) -> str:
    """One for all tests that need no more than empty tables: making one takes a second."""
    return new_database()


@pytest.fixture
def empty_database(shared_database: str) -> str:
    """The shared one, with nothing in its tables."""
    _empty(shared_database)
    return shared_database


def _empty(address: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        query = "SELECT string_agg(tablename, ',') FROM pg_tables WHERE tablename <> 'alembic_version'"
        row = connection.execute(query + " AND schemaname = 'public'").fetchone()
        if row and row[0]:
            connection.execute(f"TRUNCATE {row[0]} RESTART IDENTITY".encode())
