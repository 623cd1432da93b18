"""Verifies the whole store once a night, slowly enough to leave the disk to others.

The result of the last scrub is kept in the store. A scrub that a stop of the gateway ends starts again; what
is wrong is reported and never repaired.
"""

import json
import logging
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from neocloud.core.clock import Clock
from neocloud.object_store.blobs.driver import BlobError
from neocloud.object_store.errors import StoreFull, StoreUnavailable
from neocloud.object_store.metadata.transaction import Transaction
from neocloud.object_store.store import ObjectStore
from neocloud.object_store.verification import Checked, Problem, StoreProblem, verify_store

HOUR = 2
"""The hour, in UTC, at which a scrub begins."""
MISSED = timedelta(hours=48)
"""If the last scrub is older, one begins an hour after the start instead of at night."""
MOST_PROBLEMS = 20
"""How many problems are kept; all are counted and logged."""
_FACT = "scrub"
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScrubResult:
    started_at: datetime
    finished_at: datetime
    versions: int
    bytes: int
    problem_count: int
    problems: tuple[StoreProblem, ...]
    """The first ones."""


class Scrubber:
    def __init__(self, store: ObjectStore, clock: Clock, bytes_per_second: float) -> None:
        self._store = store
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self.last = read_result(store)

    async def run(self) -> None:
        """Scrub every night until cancelled."""
        while True:
            await self._clock.sleep(seconds_until_due(self._clock.now(), self.last))
            try:
                await self.scrub()
            except (BlobError, StoreFull, StoreUnavailable) as error:
                logger.warning("The scrub of the object store failed: %s", error)
                await self._clock.sleep(3600.0)

    async def scrub(self) -> ScrubResult:
        """Verify all, and keep the result. Raises BlobError, StoreFull, StoreUnavailable."""
        started_at, checked = self._clock.now(), Checked()
        count, problems = 0, list[StoreProblem]()
        async for finding in verify_store(self._store.engine, started_at, checked, self._pace):
            count += 1
            where, what = finding.problem, finding.problem.what
            logger.error("Scrub: %s/%s %s: %s", finding.bucket, where.key, where.version_id, what)
            if len(problems) < MOST_PROBLEMS:
                problems.append(finding)
        result = ScrubResult(
            started_at, self._clock.now(), checked.versions, checked.bytes, count, tuple(problems)
        )
        await self._store.engine.database.write(lambda tx: _keep(tx, result))
        self.last = result
        logger.info("Scrub: %d versions, %d bytes, %d problems", checked.versions, checked.bytes, count)
        return result

    async def _pace(self, length: int) -> None:
        await self._clock.sleep(length / self._bytes_per_second)


def seconds_until_due(now: datetime, last: ScrubResult | None) -> float:
    if last is not None and now - last.started_at > MISSED:
        return 3600.0
    due = now.replace(hour=HOUR, minute=0, second=0, microsecond=0)
    return ((due if due > now else due + timedelta(days=1)) - now).total_seconds()


def read_result(store: ObjectStore) -> ScrubResult | None:
    found = store.engine.database.reading.execute(
        "SELECT value FROM fact WHERE name = ?", (_FACT,)
    ).fetchone()
    if found is None:
        return None
    kept = json.loads(found[0])
    return ScrubResult(
        datetime.fromtimestamp(kept["started_at"], UTC),
        datetime.fromtimestamp(kept["finished_at"], UTC),
        kept["versions"],
        kept["bytes"],
        kept["problem_count"],
        tuple(StoreProblem(each["bucket"], Problem(**each["problem"])) for each in kept["problems"]),
    )


def _keep(tx: Transaction, result: ScrubResult) -> None:
    times = {"started_at": result.started_at.timestamp(), "finished_at": result.finished_at.timestamp()}
    value = json.dumps({**asdict(result), **times}).encode()
    tx.connection.execute(
        "INSERT INTO fact VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (_FACT, value),
    )
