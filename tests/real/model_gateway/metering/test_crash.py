"""A gateway that is killed: what was written stays, what was under way is settled, nothing is there twice.
AIS-14.

Kills a real process with SIGKILL while it writes.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from neocloud.core.clock import SystemClock
from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.metering.ledger import open_ledger
from neocloud.model_gateway.metering.ledger_tables import LedgerReader
from neocloud.model_gateway.metering.recorder import UsageRecorder
from tests import ROOT
from tests.fast.model_gateway.metering.conftest import PROJECT, request_start, routes
from tests.fast.model_gateway.metering.test_ledger import table


def told(lines: Iterator[str], word: str) -> int:
    for line in lines:
        name, number = line.split()
        if name == word:
            return int(number)
    raise AssertionError(f"The gateway ended before it said {word}.")


def kill_at_work(path: Path, budget: str = "") -> int:
    """Return the number of requests that it had surely written after those of the beginning."""
    command = [sys.executable, "-m", "tests.real.model_gateway.metering.killed_gateway", str(path), budget]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout)
        try:
            assert (told(lines, "closed"), told(lines, "open")) == (30, 20)
            written = told(lines, "running") + 0 * told(lines, "running")
        finally:
            process.send_signal(signal.SIGKILL)
        return max([written, *(int(line.split()[1]) for line in lines if line.endswith("\n"))])


@pytest.mark.parametrize("budget", ["", "100"])
def test_after_a_kill_every_request_is_there_once_and_settled(tmp_path: Path, budget: str) -> None:
    path, clock = tmp_path / "ledger.db", SystemClock()
    written = kill_at_work(path, budget)
    assert {row["outcome"] for row in table(path) if row["request_id"].startswith("open")} == {None}
    open_ledger(path, clock).close()
    first = table(path)
    open_ledger(path, clock).close()
    assert table(path) == first  # settled once
    found = {row["request_id"]: row for row in first}
    assert len(found) == len(first)
    assert {found[f"closed{number}"]["outcome"] for number in range(30)} == {"ok"}
    for number in range(20):
        row = found[f"open{number}"]
        settled = row["outcome"], row["input"], row["cached_input"], row["output"], row["is_estimated"]
        assert settled == ("interrupted", 7, 0, 0, 1)
    running = [row for name, row in found.items() if name.startswith("running")]
    assert written <= len(running)
    assert {row["outcome"] for row in running[:written]} <= {"ok", "interrupted"}
    assert sum(row["outcome"] == "ok" for row in running) >= written
    now = clock.now() + timedelta(seconds=1)
    counted = sum(usage.count for usage in LedgerReader(path)([PROJECT], now - timedelta(days=1), now))
    assert counted == sum(row["input"] + row["output"] for row in first)


async def test_after_a_kill_the_budget_knows_what_was_spent(tmp_path: Path) -> None:
    """Under a budget no request is sent on before its reservation is on the disk."""
    path, clock = tmp_path / "ledger.db", SystemClock()
    kill_at_work(path, "100")
    ledger = open_ledger(path, clock)
    try:
        cost = sum(
            (row["input"] * row["input_price"] + row["output"] * row["output_price"]) for row in table(path)
        )
        months = {month for _, month in ledger.spent}
        spent = sum(ledger.spent.values())
        assert spent == cost > 0
        assert sum(LedgerReader(path).spent(month)[PROJECT] for month in months) == Decimal(cost).scaleb(-14)
        recorder = UsageRecorder(ledger, clock)
        recorder.update_terms(routes(budgets=((PROJECT, f"{Decimal(cost).scaleb(-14):.6f}"),)))
        with pytest.raises(OpenAiError, match="has a budget of"):
            await recorder.open(request_start("new", 1_000, 0))
    finally:
        ledger.close()
