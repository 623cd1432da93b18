"""Secrets in specs are sealed in the database's own tables, also those that an earlier release wrote. M5."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, delete, select, update

from neocloud.core.store import Store, StoreError, open_store
from neocloud.core.store import upgrade as upgrade_module
from neocloud.core.store.tables import history, resources, sealed
from neocloud.core.store.upgrade import seal_old_rows
from neocloud.core.store.vault import Vault
from neocloud.testing.store_conformance.records import resource
from neocloud.testing.store_conformance.resources import instance
from neocloud.testing.waiting import FakeClock
from tests.fast.core.store.conftest import KEY

MARKER = "marker-4711"


def engine_of(store: Store) -> Engine:
    return store._database.engine  # type: ignore[attr-defined]


def stored(engine: Engine) -> list[bytes]:
    """Every spec as it lies in the tables."""
    with engine.begin() as connection:
        found = [*connection.execute(select(resources.c.spec)), *connection.execute(select(history.c.spec))]
    return [row.spec for row in found]


def make_plain(engine: Engine, spec: bytes) -> None:
    """Replace the spec by a plain one, as a release without sealing stored it."""
    with engine.begin() as connection:
        connection.execute(update(resources).values(spec=spec))
        connection.execute(update(history).values(spec=spec))
        connection.execute(delete(sealed))


async def test_specs_with_secrets_are_sealed_in_the_tables(store: Store) -> None:
    await store.write(lambda tx: tx.insert(instance(MARKER)))
    await store.write(lambda tx: tx.update(instance(f"{MARKER}-changed")))
    specs = stored(engine_of(store))
    assert len(specs) == 3
    assert not any(MARKER.encode() in spec for spec in specs)


async def test_specs_without_secrets_stay_as_they_are(store: Store) -> None:
    await store.write(lambda tx: tx.insert(resource(spec=b"\x12\x01a")))
    assert stored(engine_of(store)) == [b"\x12\x01a", b"\x12\x01a"]


async def test_a_sealed_spec_cannot_be_moved_to_another_resource(store: Store) -> None:
    await store.write(lambda tx: tx.insert(instance(MARKER)))
    await store.write(lambda tx: tx.insert(instance("other", "computeinstance-e00b")))
    with engine_of(store).begin() as connection:
        (spec, _) = connection.execute(select(resources.c.spec).order_by(resources.c.seq)).scalars()
        connection.execute(
            update(resources).where(resources.c.id == "computeinstance-e00b").values(spec=spec)
        )
    with pytest.raises(StoreError, match="cannot be read with this key"):
        await store.read(lambda tx: tx.get("computeinstance-e00b"))


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return (
        str(tmp_path / "state.db") if request.param == "sqlite" else request.getfixturevalue("empty_database")
    )


async def with_plain_rows(address: str, clock: FakeClock, rows: int = 1) -> list[Any]:
    """A closed database whose specs are in plain."""
    store = await open_store(address, KEY, clock)
    made = [instance(MARKER, f"computeinstance-e00{number}") for number in range(rows)]
    for row in made:
        await store.write(lambda tx, row=row: tx.insert(row))
    make_plain(engine_of(store), made[0].spec)
    assert all(MARKER.encode() in spec for spec in stored(engine_of(store)))
    await store.close()
    return made


async def test_rows_of_an_earlier_release_are_sealed_at_the_start(
    address: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade_module, "ROWS_OF_A_STEP", 2)
    made = await with_plain_rows(address, clock, rows=5)
    store = await open_store(address, KEY, clock)
    assert not any(MARKER.encode() in spec for spec in stored(engine_of(store)))
    assert [(await store.read(lambda tx, row=row: tx.get(row.id))).spec for row in made] == [made[0].spec] * 5  # type: ignore[union-attr]
    assert {entry.spec for entry in await store.read(lambda tx: tx.history())} == {made[0].spec}
    await store.close()


async def test_nothing_in_plain_stays_in_the_files(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "state.db"
    await with_plain_rows(str(path), clock, rows=50)
    assert MARKER.encode() in path.read_bytes()
    await (await open_store(path, KEY, clock)).close()
    assert [file.name for file in tmp_path.iterdir() if MARKER.encode() in file.read_bytes()] == []


async def test_sealing_that_was_interrupted_goes_on_at_the_next_start(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each step in turn: the process dies there, the next start finishes it."""
    monkeypatch.setattr(upgrade_module, "ROWS_OF_A_STEP", 1)
    for last_step in range(6):
        path = tmp_path / f"state-{last_step}.db"
        await with_plain_rows(str(path), clock, rows=3)
        with monkeypatch.context() as patch:
            patch.setattr(upgrade_module, "_step", dies_after(last_step, upgrade_module._step))
            with pytest.raises(KeyboardInterrupt):
                await open_store(path, KEY, clock)
        await (await open_store(path, KEY, clock)).close()
        assert MARKER.encode() not in path.read_bytes(), last_step


def dies_after(steps: int, step: Callable[..., Any]) -> Callable[..., Any]:
    left = iter(range(steps))

    def stepping(*arguments: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return step(*arguments)

    return stepping


async def test_a_wipe_that_fails_is_tried_again(address: str, clock: FakeClock) -> None:
    await with_plain_rows(address, clock)
    store = await open_store(address, KEY, clock)
    engine, vault, wiped = engine_of(store), Vault(KEY), []
    make_plain(engine, instance(MARKER).spec)

    def fail() -> None:
        raise StoreError("No space is left.")

    seal_old_rows(engine, vault, fail)
    seal_old_rows(engine, vault, lambda: wiped.append("wiped"))
    seal_old_rows(engine, vault, lambda: wiped.append("again"))
    assert wiped == ["wiped"]
    await store.close()


async def test_a_database_of_this_release_is_never_rewritten(address: str, clock: FakeClock) -> None:
    store = await open_store(address, KEY, clock)
    await store.write(lambda tx: tx.insert(instance(MARKER)))
    seal_old_rows(engine_of(store), Vault(KEY), lambda: pytest.fail("nothing was in plain"))
    await store.close()
