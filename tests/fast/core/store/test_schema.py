"""The migrations build exactly the tables that the code uses, on both databases."""

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from neocloud.core.store import StoreError, open_store
from neocloud.core.store.tables import metadata
from neocloud.testing.waiting import FakeClock
from tests.fast.core.store.conftest import KEY


async def test_migrations_and_tables_agree(address: str, clock: FakeClock) -> None:
    store = await open_store(address, KEY, clock)
    with store._database.engine.connect() as connection:  # type: ignore[attr-defined]
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    await store.close()


async def test_a_newer_postgresql_database_is_refused_and_not_touched(new_database, clock: FakeClock) -> None:
    address = new_database()
    await (await open_store(address, KEY, clock)).close()
    with psycopg.connect(address) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreError, match="newer Neocloud .schema 9999"):
        await open_store(address, KEY, clock)
    with psycopg.connect(address) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("9999",)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("postgresql://nobody@/x?host=/nowhere/at/all", "does not answer"),
        ("postgresql://user@host:port/x", "cannot be read"),
    ],
)
async def test_a_postgresql_that_cannot_be_reached_is_said(address: str, told: str, clock: FakeClock) -> None:
    with pytest.raises(StoreError, match=told):
        await open_store(address, KEY, clock)


async def test_a_database_that_does_not_exist_is_said(postgres: str, clock: FakeClock) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        await open_store(postgres.replace("/postgres?", "/none?"), KEY, clock)


async def test_passwords_are_not_shown_in_errors(clock: FakeClock) -> None:
    with pytest.raises(StoreError) as raised:
        await open_store("postgresql://user:hunter2@/x?host=/nowhere", KEY, clock)
    assert "hunter2" not in str(raised.value)


async def test_what_is_acknowledged_survives_a_crash_of_a_postgresql_that_says_otherwise(
    shared_database: str, clock: FakeClock
) -> None:
    with psycopg.connect(shared_database) as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("off",)
    store = await open_store(shared_database, KEY, clock)
    database = store._database  # type: ignore[attr-defined]
    for engine in (database.engine, database.reading):
        with engine.connect() as connection:
            connection.rollback()
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
    await store.close()
