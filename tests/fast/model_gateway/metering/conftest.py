"""An account recorder on a ledger of its own, with time that stands still."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from neocloud.core import contract
from neocloud.model_gateway.metering.ledger import Ledger, open_ledger
from neocloud.model_gateway.metering.ledger_tables import LedgerReader
from neocloud.model_gateway.metering.recorder import RequestRecord, RequestStart, TokenUsage, UsageRecorder
from neocloud.testing.waiting import FakeClock

START = datetime(2026, 11, 10, 8, tzinfo=UTC)
TENANT, PROJECT, OTHER = "tenant-e00a", "project-e00a", "project-e00b"
DEPLOYMENT, MODEL = "inferencedeployment-e00a", "bank"
Routes = contract.message("neocloud.inference.v1.ListRoutesResponse")


def routes(
    *,
    price: tuple[str, str, str] = ("0.02", "", "0.06"),
    budgets: tuple[tuple[str, str], ...] = (),
    charge: int = 0,
    **limits: int,
) -> Any:
    """One deployment on these terms; prices are of input, cached input and output."""
    message = Routes()
    route = message.routes.add(deployment_id=DEPLOYMENT, tenant_id=TENANT, charge=charge)
    route.limits.tokens_per_minute = limits.get("tokens", 200_000)
    route.limits.requests_per_minute = limits.get("requests", 0)
    route.price.input, route.price.cached_input, route.price.output = price
    for project_id, monthly_limit in budgets:
        message.budgets.add(project_id=project_id, monthly_limit=monthly_limit)
    return message


def request_start(request_id: str, tokens: int = 100, output: int = 100, **more: Any) -> RequestStart:
    given = {
        "tenant_id": TENANT,
        "project_id": PROJECT,
        "subject_id": "serviceaccount-e00a",
        "deployment_id": DEPLOYMENT,
        "model_name": MODEL,
        **more,
    }
    return RequestStart(request_id, input_tokens=tokens, max_output_tokens=output, **given)


@contextmanager
def ledger_at(path: Path, clock: FakeClock, **more: int) -> Iterator[Ledger]:
    ledger = open_ledger(path, clock, **more)
    try:
        yield ledger
    finally:
        ledger.close()


@dataclass
class Desk:
    recorder: UsageRecorder
    ledger: Ledger
    clock: FakeClock
    reader: LedgerReader
    path: Path

    async def pay(
        self, request_id: str, usage: TokenUsage | None, outcome: str = "ok", **more: Any
    ) -> RequestRecord:
        account = await self.recorder.open(request_start(request_id, **more))
        account.close(usage, outcome)
        return account

    def rows(self, project_id: str = PROJECT, **window: datetime) -> dict[str, int]:
        """Tokens by SKU."""
        start, end = (
            window.get("start", datetime(2026, 1, 1, tzinfo=UTC)),
            window.get("end", self.clock.now()),
        )
        found: dict[str, int] = {}
        for usage in self.reader([project_id], start, end):
            found[usage.sku] = found.get(usage.sku, 0) + usage.count
        return found


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
async def desk(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Desk]:
    path = tmp_path / "gateway" / "ledger.db"
    with ledger_at(path, clock) as ledger:
        recorder = UsageRecorder(ledger, clock)
        recorder.update_terms(routes())
        yield Desk(recorder, ledger, clock, LedgerReader(path), path)
