"""One row for each request, whatever happens to the disk, the process and the clock. BILL-03, AIS-14."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.metering import ledger_tables as schema
from neocloud.model_gateway.metering.ledger import open_ledger
from neocloud.model_gateway.metering.ledger_tables import LedgerError, LedgerReader, RequestEnd
from neocloud.model_gateway.metering.recorder import UsageRecorder
from neocloud.model_gateway.metering.usage import TokenUsage
from neocloud.testing.waiting import FakeClock, until
from tests.fast.model_gateway.metering.conftest import (
    DEPLOYMENT,
    OTHER,
    PROJECT,
    START,
    Desk,
    ledger_at,
    request_start,
    routes,
)

HOUR, DAY = 3600, 86400
IN, CACHED, OUT = "tokens.bank.input", "tokens.bank.cached-input", "tokens.bank.output"


@contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        yield connection


def table(path: Path, name: str = "requests") -> list[dict]:
    with database(path) as connection:
        return [dict(row) for row in connection.execute(f"SELECT * FROM {name} ORDER BY 1")]


async def condensed(path: Path, before: datetime) -> None:
    """The ledger does it beside its other work, an hour's rows at a time."""
    hour = int(before.timestamp()) // HOUR * HOUR * 1000
    await until(lambda: all(row["ended_at"] >= hour for row in table(path)), poll_seconds=0.002)


async def test_a_request_is_a_row_from_its_opening_on(desk: Desk) -> None:
    account = await desk.recorder.open(request_start("a", 7, 9))
    await desk.recorder.flush()
    (row,) = table(desk.path)
    assert (row["ended_at"], row["estimated_input"], row["max_output"]) == (None, 7, 9)
    assert (row["input_price"], row["cached_input_price"], row["output_price"]) == (
        2 * 10**6,
        2 * 10**6,
        6 * 10**6,
    )
    await desk.clock.advance(2)
    account.close(TokenUsage(8, 3, 5), "ok")
    account.close(TokenUsage(80, 30, 50), "client_left")
    await desk.recorder.flush()
    (row,) = table(desk.path)
    assert row["ended_at"] - row["started_at"] == 2000
    assert (row["input"], row["cached_input"], row["output"], row["outcome"]) == (8, 3, 5, "ok")
    assert desk.rows(end=desk.clock.now() + timedelta(seconds=1)) == {IN: 5, CACHED: 3, OUT: 5}


async def test_rows_are_written_without_a_flush_again_and_again(desk: Desk) -> None:
    await desk.pay("a", TokenUsage(8, 3, 5))
    await until(lambda: [row["outcome"] for row in table(desk.path)] == ["ok"])
    await desk.pay("b", TokenUsage(8, 3, 5))
    await until(lambda: [row["outcome"] for row in table(desk.path)] == ["ok", "ok"])


async def test_what_came_to_nothing_is_a_row_too_and_no_usage(desk: Desk) -> None:
    await desk.pay("a", None, "refused")
    await desk.recorder.flush()
    assert [(row["outcome"], row["input"]) for row in table(desk.path)] == [("refused", 0)]
    assert desk.rows(end=desk.clock.now() + timedelta(seconds=1)) == {}


async def test_a_request_id_is_never_charged_twice(desk: Desk) -> None:
    """Neither within one write nor later."""
    for tokens in (10, 90):
        await desk.pay("a", TokenUsage(tokens, 0, 0))
        await desk.pay("a", TokenUsage(tokens + 1, 0, 0), "replica_lost")
        await desk.recorder.flush()
    assert [row["input"] for row in table(desk.path)] == [10]
    assert desk.reader.spent("2026-11") == {PROJECT: Decimal("0.0000002")}


async def test_an_engine_that_talks_nonsense_breaks_no_sum(desk: Desk) -> None:
    await desk.pay("a", TokenUsage(5, 9, -1))
    await desk.pay("b", TokenUsage(10**30, 0, 10**30))
    await desk.recorder.flush()
    found = {row["request_id"]: row for row in table(desk.path)}
    assert (found["a"]["cached_input"], found["a"]["output"], found["a"]["is_estimated"]) == (5, 0, 1)
    assert found["b"]["input"] == 10**10


async def test_usage_is_told_by_project_model_day_and_price(desk: Desk) -> None:
    await desk.pay("a", TokenUsage(10, 4, 1))
    await desk.pay("b", TokenUsage(10, 0, 1), model_name="bank-fast")
    await desk.pay("c", TokenUsage(10, 0, 1), project_id=OTHER)
    await desk.clock.advance(DAY)
    await desk.pay("d", TokenUsage(10, 0, 0))
    desk.recorder.update_terms(routes(price=("0.5", "", "")))
    await desk.pay("e", TokenUsage(20, 0, 0))
    await desk.clock.advance(1)
    await desk.recorder.flush()
    start, end = START - timedelta(hours=1), desk.clock.now()
    found = list(desk.reader([PROJECT, OTHER], start, end))
    assert {(u.parent_id, u.sku, u.start.day, u.count, u.unit_price) for u in found} == {
        (PROJECT, IN, 10, 6, Decimal("0.02")),
        (PROJECT, CACHED, 10, 4, Decimal("0.02")),
        (PROJECT, OUT, 10, 1, Decimal("0.06")),
        (PROJECT, "tokens.bank-fast.input", 10, 10, Decimal("0.02")),
        (PROJECT, "tokens.bank-fast.output", 10, 1, Decimal("0.06")),
        (OTHER, IN, 10, 10, Decimal("0.02")),
        (OTHER, OUT, 10, 1, Decimal("0.06")),
        (PROJECT, IN, 11, 10, Decimal("0.02")),
        (PROJECT, IN, 11, 20, Decimal("0.5")),
    }
    assert {(u.start, u.end) for u in found} == {
        (START, datetime(2026, 11, 11, tzinfo=UTC)),
        (START + timedelta(days=1), end),
    }, "of each day since its first request"
    assert {(u.resource_id, u.resource_name) for u in found} == {
        (DEPLOYMENT, "bank"),
        (DEPLOYMENT, "bank-fast"),
    }
    assert list(desk.reader([], start, end)) == [] == list(desk.reader(["project-e00x"], start, end))
    assert desk.reader.last_requests()[DEPLOYMENT] == START + timedelta(days=1)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(st.integers(0, 3 * DAY), max_size=30), st.lists(st.integers(0, 3 * DAY), min_size=3, max_size=3)
)
async def test_windows_that_meet_add_up(tmp_path_factory, ends: list[int], cuts: list[int]) -> None:
    """Bill for [a, b) and [b, c) is that for [a, c), also where old rows have become sums of hours."""
    path, clock = tmp_path_factory.mktemp("ledger") / "ledger.db", FakeClock(START)
    with ledger_at(path, clock, keep_days=1) as ledger:
        recorder = UsageRecorder(ledger, clock)
        recorder.update_terms(routes())
        for number, end in enumerate(sorted(ends)):
            await clock.advance(START.timestamp() + end - clock.now().timestamp())
            (await recorder.open(request_start(f"{number}", 3, 2))).close(TokenUsage(3, 1, 2), "ok")
        await recorder.flush()
        await condensed(path, clock.now() - timedelta(days=1))
        a, b, c = (START + timedelta(seconds=each) for each in sorted(cuts))
        reader = LedgerReader(path)

        def counted(start: datetime, end: datetime) -> int:
            return sum(usage.count for usage in reader([PROJECT], start, end))

        assert counted(a, b) + counted(b, c) == counted(a, c)
        assert counted(START - timedelta(hours=1), START + timedelta(days=4)) == 5 * len(ends)


async def test_old_rows_become_sums_of_their_hour_and_the_bill_stays(
    tmp_path: Path, clock: FakeClock
) -> None:
    path, reader = tmp_path / "ledger.db", LedgerReader(tmp_path / "ledger.db")
    everything = (START - timedelta(days=1), START + timedelta(days=90))
    with ledger_at(path, clock, keep_days=2) as ledger:
        recorder = UsageRecorder(ledger, clock)
        recorder.update_terms(routes())
        for number in range(12):  # three an hour
            (await recorder.open(request_start(f"{number}"))).close(
                TokenUsage(10, 4, 5, number % 2 == 0), "ok"
            )
            await clock.advance(HOUR / 3)
        await recorder.flush()
        before = [(u.sku, u.count) for u in reader([PROJECT], *everything)]
    await clock.advance(30 * DAY)
    with ledger_at(path, clock, keep_days=2) as ledger:
        recorder = UsageRecorder(ledger, clock)
        recorder.update_terms(routes(price=("5", "", "")))
        (await recorder.open(request_start("new"))).close(TokenUsage(1, 0, 0), "ok")
        await recorder.flush()
        await condensed(path, clock.now() - timedelta(days=2))
    assert [row["request_id"] for row in table(path)] == ["new"]
    sums = table(path, "hours")
    assert [(row["hour"] // 3_600_000 % 24, row["requests"], row["input"]) for row in sums] == [
        (8, 3, 30),
        (9, 3, 30),
        (10, 3, 30),
        (11, 3, 30),
    ]
    assert sum(row["estimated_requests"] for row in sums) == 6
    after = [(u.sku, u.count) for u in reader([PROJECT], everything[0], START + timedelta(days=2))]
    assert after == before
    assert reader.spent("2026-11") == {
        PROJECT: Decimal(120) * Decimal("0.00000002") + 60 * Decimal("0.00000006")
    }


async def test_nobody_waits_for_the_disk_without_a_budget(desk: Desk) -> None:
    """While the disk hangs, requests without a budget open and close; with one they wait."""
    with database(desk.path) as other:
        other.execute("BEGIN IMMEDIATE")  # the ledger waits for us
        await desk.pay("a", TokenUsage(1, 0, 0))
        other.rollback()
    await desk.recorder.flush()
    assert [row["outcome"] for row in table(desk.path)] == ["ok"]


async def test_a_full_disk_refuses_what_is_new_and_loses_nothing(tmp_path: Path, clock: FakeClock) -> None:
    """Full as SQLite says it: no page more than there are."""
    path = tmp_path / "ledger.db"
    with ledger_at(path, clock) as ledger:
        recorder = UsageRecorder(ledger, clock)
        recorder.update_terms(routes(tokens=0, budgets=((OTHER, "100"),)))
        accounts = [await recorder.open(request_start(f"old{number}")) for number in range(50)]
        await recorder.flush()
        _fill_up(ledger, pages=1)
        accounts += [await recorder.open(request_start(f"late{number}")) for number in range(200)]
        with pytest.raises(OpenAiError) as waiting:
            await recorder.open(request_start("budgeted", project_id=OTHER))
        with pytest.raises(OpenAiError) as refused:
            await recorder.open(request_start("new"))
        for error in (waiting.value, refused.value):
            assert (error.status, error.code) == (503, "ledger_unavailable")
            assert error.headers["Retry-After"] == "5" and "disk is full" in error.message
        for account in accounts:
            account.close(TokenUsage(10, 0, 10), "ok")
        assert len(table(path)) == 50
        _fill_up(ledger, pages=2**31)
        await recorder.flush()
        await recorder.open(request_start("after", project_id=OTHER))
    rows = {row["request_id"]: row["outcome"] for row in table(path)}
    assert len(rows) == 251 and {"new", "budgeted"}.isdisjoint(rows)
    assert [name for name, outcome in rows.items() if outcome != "ok"] == ["after"]


def _fill_up(ledger, *, pages: int) -> None:
    ledger._connection.execute(f"PRAGMA max_page_count = {pages}")


def test_a_second_gateway_on_one_ledger_is_refused(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "ledger.db"
    with ledger_at(path, clock), pytest.raises(LedgerError, match="Another process uses"):
        open_ledger(path, clock)
    open_ledger(path, clock).close()


def test_what_is_no_ledger_is_refused_with_what_to_do(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(b"this is a text, and no database at all" * 100)
    with pytest.raises(LedgerError, match=r"ledger\.db is not a ledger.*Move it away"):
        open_ledger(path, clock)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, clock: FakeClock) -> None:
    (tmp_path / "gateway").write_text("a file where the folder should be")
    with pytest.raises(LedgerError, match=r"gateway/ledger\.db cannot be opened"):
        open_ledger(tmp_path / "gateway" / "ledger.db", clock)


def test_a_newer_ledger_is_left_alone(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "ledger.db"
    open_ledger(path, clock).close()
    with database(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerError, match="newer release.*version 99"):
        open_ledger(path, clock)


async def test_an_older_ledger_is_brought_up_to_date(tmp_path: Path, clock: FakeClock, monkeypatch) -> None:
    path = tmp_path / "ledger.db"
    with ledger_at(path, clock) as ledger:
        ledger.write(RequestEnd("nobody", 0, 0, 0, 0, "ok", 0))
    more = "ALTER TABLE requests ADD COLUMN region TEXT; CREATE TABLE extra (one)"
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, more))
    open_ledger(path, clock).close()
    with database(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == len(schema.MIGRATIONS)
        assert "region" in [row["name"] for row in connection.execute("PRAGMA table_info(requests)")]


def test_a_failed_step_changes_nothing(tmp_path: Path, clock: FakeClock, monkeypatch) -> None:
    path = tmp_path / "ledger.db"
    open_ledger(path, clock).close()
    monkeypatch.setattr(
        schema, "MIGRATIONS", (*schema.MIGRATIONS, "CREATE TABLE half (one); CREATE nonsense")
    )
    with pytest.raises(LedgerError, match="cannot be opened"):
        open_ledger(path, clock)
    monkeypatch.undo()
    open_ledger(path, clock).close()
    with database(path) as connection:
        assert not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'half'").fetchall()


def test_a_home_without_a_gateway_has_no_usage(tmp_path: Path) -> None:
    reader = LedgerReader(tmp_path / "gateway" / "ledger.db")
    assert list(reader([PROJECT], START, START + timedelta(days=1))) == []
    assert reader.spent("2026-11") == {} == reader.last_requests()
    assert reader.monthly_spending(PROJECT, START) == 0
    assert not (tmp_path / "gateway").exists()
