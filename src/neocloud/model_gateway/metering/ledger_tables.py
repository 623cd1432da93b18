"""The tables of the ledger: the SQL that writes them, and their reader for other processes.

`requests` has a row for each request from its start on; old rows become sums in `hours`. Prices are those at
the start of a request, in 1e-14 dollars per token; NO_PRICE where there was none. Times are milliseconds
since 1970. Each statement handles all rows of a batch in one step: the writing thread takes Python's lock
once per batch, not once per row.

`LedgerReader` reads usage for bills, spending and last requests. Its calls block for milliseconds. A home
without a gateway has no usage.
"""

import json
import sqlite3
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from neocloud.core.usage import CallerUsage, CountedUsage
from neocloud.data_plane.gateway_keys import gateway_folder
from neocloud.model_gateway.metering.balances import Price, per_million, to_dollars
from neocloud.model_gateway.metering.usage import TokenUsage

NO_PRICE = -1
HOUR_MS = 3_600_000


def ledger_file(home: Path) -> Path:
    return gateway_folder(home) / "ledger.db"


class LedgerError(Exception):
    """The ledger cannot be used. The message says why and what to do."""


MIGRATIONS = (
    """
    CREATE TABLE requests (
        request_id TEXT NOT NULL UNIQUE,
        tenant_id TEXT NOT NULL,
        project_id TEXT NOT NULL,
        subject_id TEXT NOT NULL,
        deployment_id TEXT NOT NULL,
        model_name TEXT NOT NULL,
        input_price INTEGER NOT NULL,
        cached_input_price INTEGER NOT NULL,
        output_price INTEGER NOT NULL,
        estimated_input INTEGER NOT NULL,
        max_output INTEGER NOT NULL,
        started_at INTEGER NOT NULL,
        ended_at INTEGER,
        input INTEGER,
        cached_input INTEGER,
        output INTEGER,
        outcome TEXT,
        is_estimated INTEGER
    );
    CREATE INDEX requests_by_end ON requests (ended_at) WHERE ended_at IS NOT NULL;
    CREATE INDEX requests_open ON requests (started_at) WHERE ended_at IS NULL;

    CREATE TABLE hours (
        hour INTEGER NOT NULL,
        tenant_id TEXT NOT NULL,
        project_id TEXT NOT NULL,
        subject_id TEXT NOT NULL,
        deployment_id TEXT NOT NULL,
        model_name TEXT NOT NULL,
        input_price INTEGER NOT NULL,
        cached_input_price INTEGER NOT NULL,
        output_price INTEGER NOT NULL,
        requests INTEGER NOT NULL,
        estimated_requests INTEGER NOT NULL,
        input INTEGER NOT NULL,
        cached_input INTEGER NOT NULL,
        output INTEGER NOT NULL,
        PRIMARY KEY (
            hour, project_id, subject_id, deployment_id, model_name, input_price, cached_input_price,
            output_price
        )
    ) WITHOUT ROWID;

    CREATE TABLE spent (
        project_id TEXT NOT NULL,
        month TEXT NOT NULL,
        amount TEXT NOT NULL,
        PRIMARY KEY (project_id, month)
    ) WITHOUT ROWID;

    CREATE TABLE last_requests (
        deployment_id TEXT NOT NULL PRIMARY KEY,
        at INTEGER NOT NULL
    ) WITHOUT ROWID;
    """,
)
"""Each script leads to the next version. `spent.amount` is text: 1e-14 dollars exceed 64 bits."""


def check_file(path: Path) -> None:
    """Raise LedgerError where a file is not a ledger."""
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        raise LedgerError(
            f"{path} is not a ledger or is damaged: {error}. Move it away to start with a new ledger; usage"
            " recorded in the old file is then not billed."
        ) from error


INTERRUPTED = "interrupted"
_GROUP = "project_id, input_price, cached_input_price, output_price"


class Reservation(NamedTuple):
    """A request that is about to be sent: the first columns of `requests` in their order."""

    request_id: str
    tenant_id: str
    project_id: str
    subject_id: str
    deployment_id: str
    model_name: str
    input_price: int
    cached_input_price: int
    output_price: int
    estimated_input: int
    max_output: int
    started_at: int


class RequestEnd(NamedTuple):
    request_id: str
    ended_at: int
    input: int
    cached_input: int
    output: int
    outcome: str
    is_estimated: int


def insert_starts(connection: sqlite3.Connection, rows: Sequence[Reservation]) -> None:
    """Insert rows. A request that exists stays as it is, so it is never charged twice."""
    columns, values = _columns(Reservation._fields)
    connection.execute(
        f"INSERT INTO requests ({columns}) SELECT {values} FROM json_each(?) WHERE true"  # nosec B608
        " ON CONFLICT (request_id) DO NOTHING",
        (json.dumps(rows),),
    )
    last = {row.deployment_id: row.started_at for row in sorted(rows, key=lambda row: row.started_at)}
    connection.executemany(
        "INSERT INTO last_requests VALUES (?, ?) ON CONFLICT DO UPDATE SET at = max(at, excluded.at)",
        last.items(),
    )


def close_requests(connection: sqlite3.Connection, rows: Sequence[RequestEnd]) -> None:
    """Complete open rows. If a request has two ends, the first one counts."""
    first = {row.request_id: row for row in reversed(rows)}
    content = json.dumps(list(first.values()))
    _, values = _columns(RequestEnd._fields, alias=True)
    given = f"(SELECT {values} FROM json_each(?)) AS c"  # nosec B608
    sums = connection.execute(
        f"SELECT {_GROUP}, {_month('c.ended_at')}, sum(c.input), sum(c.cached_input), sum(c.output)"  # nosec B608
        f" FROM {given} JOIN requests AS r ON r.request_id = c.request_id"
        " WHERE r.ended_at IS NULL GROUP BY 1, 2, 3, 4, 5",
        (content,),
    ).fetchall()
    _add_spent(connection, sums)
    assignments = ", ".join(f"{column} = c.{column}" for column in RequestEnd._fields[1:])
    connection.execute(
        f"UPDATE requests SET {assignments} FROM {given}"  # nosec B608
        " WHERE requests.request_id = c.request_id AND requests.ended_at IS NULL",
        (content,),
    )


def close_interrupted(connection: sqlite3.Connection, now: int) -> int:
    """Close the requests of a killed gateway with their estimated input, and return their number."""
    ended_at = "max(started_at, :now)"
    sums = connection.execute(
        f"SELECT {_GROUP}, {_month(ended_at)}, sum(estimated_input), 0, 0"  # nosec B608
        " FROM requests WHERE ended_at IS NULL GROUP BY 1, 2, 3, 4, 5",
        {"now": now},
    ).fetchall()
    _add_spent(connection, sums)
    return connection.execute(
        f"UPDATE requests SET ended_at = {ended_at}, input = estimated_input, cached_input = 0, output = 0,"  # nosec B608
        " outcome = :outcome, is_estimated = 1 WHERE ended_at IS NULL",
        {"now": now, "outcome": INTERRUPTED},
    ).rowcount


def aggregate_hour(connection: sqlite3.Connection, before: int) -> bool:
    """Aggregate the oldest hour of rows that ended before a time; return False when there is none."""
    (oldest,) = connection.execute("SELECT min(ended_at) FROM requests WHERE ended_at IS NOT NULL").fetchone()
    if oldest is None or oldest >= before:
        return False
    hour = oldest // HOUR_MS * HOUR_MS
    window = {"hour": hour, "end": min(hour + HOUR_MS, before)}
    where = "WHERE ended_at >= :hour AND ended_at < :end"
    sums = ("requests", "estimated_requests", "input", "cached_input", "output")
    connection.execute(
        "INSERT INTO hours SELECT :hour, tenant_id, project_id, subject_id, deployment_id, model_name,"  # nosec B608
        " input_price, cached_input_price, output_price, count(*), sum(is_estimated), sum(input),"
        " sum(cached_input), sum(output)"
        f" FROM requests {where} GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9"
        f" ON CONFLICT DO UPDATE SET {', '.join(f'{each} = {each} + excluded.{each}' for each in sums)}",
        window,
    )
    connection.execute(f"DELETE FROM requests {where}", window)  # nosec B608
    return True


def spent_by_month(connection: sqlite3.Connection) -> Mapping[tuple[str, str], int]:
    """Return the spending in 1e-14 dollars by project and month."""
    rows = connection.execute("SELECT project_id, month, amount FROM spent")
    return {(project_id, month): int(amount) for project_id, month, amount in rows}


def _add_spent(connection: sqlite3.Connection, sums: Iterable[Sequence[Any]]) -> None:
    """Add in Python, since such sums exceed SQLite's integers."""
    added: dict[tuple[str, str], int] = {}
    for project_id, *price, month, tokens, cached, output in sums:
        if price[0] != NO_PRICE and (cost := Price(*price).cost(TokenUsage(tokens, cached, output))):
            added[project_id, month] = added.get((project_id, month), 0) + cost
    for (project_id, month), amount in added.items():
        found = connection.execute(
            "SELECT amount FROM spent WHERE project_id = ? AND month = ?", (project_id, month)
        ).fetchone()
        total = amount + (int(found[0]) if found else 0)
        connection.execute("INSERT OR REPLACE INTO spent VALUES (?, ?, ?)", (project_id, month, str(total)))


def _columns(names: Sequence[str], *, alias: bool = False) -> tuple[str, str]:
    values = (
        f"json_extract(value, '$[{index}]')" + (f" AS {name}" if alias else "")
        for index, name in enumerate(names)
    )
    return ", ".join(names), ", ".join(values)


def _month(moment: str) -> str:
    return f"strftime('%Y-%m', {moment} / 1000, 'unixepoch')"


DEPLOYMENT = "neocloud.inference.v1.Deployment"
_UNIT, _UNIT_SIZE = "million-tokens", 10**6
_DAY_MS = 86_400_000
_COLUMNS = "project_id, deployment_id, model_name, input_price, cached_input_price, output_price"


def ledger_reader(home: Path) -> "LedgerReader":
    return LedgerReader(ledger_file(home))


class LedgerReader:
    """A `core.usage.UsageSource` and `CallerSource`. Created by `ledger_reader`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, project_ids: Sequence[str], start: datetime, end: datetime) -> Iterable[CountedUsage]:
        """Return usage by the end time of requests; aggregated usage counts at the start of its hour,
        so adjacent windows add up. The usage of a day begins with its first request, and is one record for
        each SKU and price, also while a part of the day is aggregated."""
        found: dict[tuple[Any, ...], CountedUsage] = {}
        for project_id, deployment_id, model, *prices, day, first, tokens, cached, output in self._sums(
            project_ids, _milliseconds(start), _milliseconds(end)
        ):
            counts = {"input": tokens - cached, "cached-input": cached, "output": output}
            midnight = datetime.fromtimestamp((day + 1) * _DAY_MS // 1000, UTC)
            for (kind, count), price in zip(counts.items(), prices, strict=True):
                if not count:
                    continue
                usage = CountedUsage(
                    resource_id=deployment_id,
                    resource_kind=DEPLOYMENT,
                    resource_name=model,
                    parent_id=project_id,
                    sku=f"tokens.{model}.{kind}",
                    count=count,
                    start=datetime.fromtimestamp(first // 1000, UTC),
                    end=min(midnight, end),
                    unit=_UNIT,
                    unit_size=_UNIT_SIZE,
                    unit_price=None if prices[0] == NO_PRICE else per_million(price),
                )
                key = (project_id, deployment_id, usage.sku, usage.unit_price, day)
                found[key] = _merged(found[key], usage) if key in found else usage
        return list(found.values())

    def by_caller(self, project_ids: Sequence[str], start: datetime, end: datetime) -> Iterable[CallerUsage]:
        """Return the same usage by the account whose key or token the requests had."""
        columns = f"{_COLUMNS}, subject_id"
        for project_id, deployment_id, model, *prices, subject, day, _, tokens, cached, output in self._sums(
            project_ids, _milliseconds(start), _milliseconds(end), columns
        ):
            counts = {"input": tokens - cached, "cached-input": cached, "output": output}
            for (kind, count), price in zip(counts.items(), prices, strict=True):
                if count:
                    yield CallerUsage(
                        account_id=subject,
                        resource_id=deployment_id,
                        parent_id=project_id,
                        sku=f"tokens.{model}.{kind}",
                        day=datetime.fromtimestamp(day * _DAY_MS // 1000, UTC).date(),
                        unit_price=None if prices[0] == NO_PRICE else per_million(price),
                        count=count,
                    )

    def spent(self, month: str) -> Mapping[str, Decimal]:
        """Return the dollars that each project has spent on tokens in a month (UTC) such as "2026-11"."""
        with self._read() as connection:
            if connection is None:
                return {}
            rows = connection.execute("SELECT project_id, amount FROM spent WHERE month = ?", (month,))
            return {project_id: to_dollars(int(amount)) for project_id, amount in rows}

    def monthly_spending(self, project_id: str, at: datetime) -> Decimal:
        """Return the spending of one project in the month (UTC) of `at`."""
        return self.spent(f"{at.astimezone(UTC):%Y-%m}").get(project_id, Decimal(0))

    def last_requests(self) -> Mapping[str, datetime]:
        """Return the time of the last request of each deployment."""
        with self._read() as connection:
            if connection is None:
                return {}
            rows = connection.execute("SELECT deployment_id, at FROM last_requests")
            return {deployment_id: datetime.fromtimestamp(at / 1000, UTC) for deployment_id, at in rows}

    def _sums(
        self, project_ids: Sequence[str], start: int, end: int, columns: str = _COLUMNS
    ) -> Sequence[tuple[Any, ...]]:
        """Sum tokens by project, deployment, model, price and day, or by other columns and day."""
        marks = ", ".join("?" * len(project_ids))
        sums = "sum(input), sum(cached_input), sum(output)"

        def select(table: str, moment: str) -> str:
            return (
                f"SELECT {columns}, {moment} / {_DAY_MS} AS day, min({moment}), {sums} FROM {table}"  # nosec B608
                f" WHERE {moment} >= ? AND {moment} < ? AND project_id IN ({marks}) GROUP BY {columns}, day"
            )

        window = (start, end, *project_ids)
        with self._read() as connection:
            if connection is None or not project_ids:
                return ()
            return connection.execute(
                f"{select('requests', 'ended_at')} UNION ALL {select('hours', 'hour')}", window * 2
            ).fetchall()

    @contextmanager
    def _read(self) -> Generator[sqlite3.Connection | None]:
        """Yield None where no gateway has written yet."""
        if not self._path.exists():
            yield None
            return
        with closing(sqlite3.connect(f"{self._path.as_uri()}?mode=ro", uri=True, timeout=5)) as connection:
            yield connection


def _merged(one: CountedUsage, other: CountedUsage) -> CountedUsage:
    return replace(one, count=one.count + other.count, start=min(one.start, other.start))


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp()) * 1000
