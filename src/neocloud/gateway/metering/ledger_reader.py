"""Read the ledger from other processes: usage for bills, spending, last requests.

All calls block for milliseconds. A home without a gateway has no usage.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from neocloud.core.usage import CountedUsage
from neocloud.gateway.metering.ledger_tables import NO_PRICE, ledger_file
from neocloud.gateway.metering.prices import per_million, to_dollars

DEPLOYMENT = "neocloud.inference.v1.Deployment"
_UNIT, _UNIT_SIZE = "million-tokens", 10**6
_DAY_MS = 86_400_000
_COLUMNS = "project_id, deployment_id, model_name, input_price, cached_input_price, output_price"


def ledger_reader(home: Path) -> "LedgerReader":
    return LedgerReader(ledger_file(home))


class LedgerReader:
    """A `core.usage.UsageSource`. Created by `ledger_reader`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, project_ids: Sequence[str], start: datetime, end: datetime) -> Iterable[CountedUsage]:
        """Return usage by the end time of requests; aggregated usage counts at the start of its hour,
        so adjacent windows add up."""
        found: list[CountedUsage] = []
        for project_id, deployment_id, model, *prices, day, tokens, cached, output in self._sums(
            project_ids, _milliseconds(start), _milliseconds(end)
        ):
            counts = {"input": tokens - cached, "cached-input": cached, "output": output}
            begin = datetime.fromtimestamp(day * _DAY_MS // 1000, UTC)
            for (kind, count), price in zip(counts.items(), prices, strict=True):
                if count:
                    found.append(
                        CountedUsage(
                            resource_id=deployment_id,
                            resource_kind=DEPLOYMENT,
                            resource_name=model,
                            parent_id=project_id,
                            sku=f"tokens.{model}.{kind}",
                            count=count,
                            start=max(begin, start),
                            end=min(begin + timedelta(days=1), end),
                            unit=_UNIT,
                            unit_size=_UNIT_SIZE,
                            unit_price=None if prices[0] == NO_PRICE else per_million(price),
                        )
                    )
        return found

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

    def _sums(self, project_ids: Sequence[str], start: int, end: int) -> Sequence[tuple]:
        """Sum tokens by project, deployment, model, price and day."""
        marks = ", ".join("?" * len(project_ids))
        sums = "sum(input), sum(cached_input), sum(output)"

        def select(table: str, moment: str) -> str:
            return (
                f"SELECT {_COLUMNS}, {moment} / {_DAY_MS} AS day, {sums} FROM {table}"  # nosec B608
                f" WHERE {moment} >= ? AND {moment} < ? AND project_id IN ({marks}) GROUP BY {_COLUMNS}, day"
            )

        window = (start, end, *project_ids)
        with self._read() as connection:
            if connection is None or not project_ids:
                return ()
            return connection.execute(
                f"{select('requests', 'ended_at')} UNION ALL {select('hours', 'hour')}", window * 2
            ).fetchall()

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection | None]:
        """Yield None where no gateway has written yet."""
        if not self._path.exists():
            yield None
            return
        with closing(sqlite3.connect(f"{self._path.as_uri()}?mode=ro", uri=True, timeout=5)) as connection:
            yield connection


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp()) * 1000
