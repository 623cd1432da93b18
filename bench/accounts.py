"""Measure the gateway's cost of accounting for a request: limits, reservation and ledger, on a real disk.

Also the cost if each request waited for the disk, as those under a budget do, one at a time and 64
simultaneously. Time of the event loop's thread is counted apart from waiting, since it is what other requests
wait for.

    python bench/accounts.py [--requests 20000]
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from neocloud.core import contract
from neocloud.core.clock import SystemClock
from neocloud.model_gateway.metering.ledger import open_ledger
from neocloud.model_gateway.metering.ledger_tables import ledger_file, ledger_reader
from neocloud.model_gateway.metering.recorder import UsageRecorder
from neocloud.model_gateway.metering.usage import RequestStart, TokenUsage

AIM_MICROSECONDS = 15
ROUND = 2_000
Routes = contract.message("neocloud.inference.v1.ListRoutesResponse")


def routes(budget: str) -> Any:
    found = Routes()
    route = found.routes.add(deployment_id="d")
    route.limits.tokens_per_minute = route.limits.requests_per_minute = 10**12
    route.price.input, route.price.output = "0.02", "0.06"
    if budget:
        found.budgets.add(project_id="p", monthly_limit=budget)
    return found


async def chat(recorder: UsageRecorder, request_id: str) -> None:
    account = await recorder.open(RequestStart(request_id, "t", "p", "s", "d", "m", 100, 100))
    assert account.headers
    account.close(TokenUsage(100, 10, 50), "ok")


async def measured(recorder: UsageRecorder, name: str, count: int, at_once: int = 1) -> tuple[float, float]:
    """Return the least microseconds per request, of the loop's own time and in all."""
    own, whole = [], []
    size = min(count, ROUND)
    for number in range(max(1, count // size)):
        ids = iter(f"{name}-{number}-{index}" for index in range(size))

        async def line() -> None:
            for request_id in ids:  # noqa: B023  all lines of the round share them
                await chat(recorder, request_id)

        cpu, start = time.thread_time(), time.perf_counter()
        await asyncio.gather(*(line() for _ in range(at_once)))
        own.append((time.thread_time() - cpu) / size * 1e6)
        whole.append((time.perf_counter() - start) / size * 1e6)
        await recorder.flush()
    return min(own), min(whole)


async def main(count: int) -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        clock, home = SystemClock(), Path(folder)
        ledger = open_ledger(ledger_file(home), clock)
        recorder = UsageRecorder(ledger, clock)
        recorder.update_terms(routes(""))
        free = await measured(recorder, "free", count)
        start = time.perf_counter()
        for index in range(count):
            await chat(recorder, f"flood-{index}")
        await recorder.flush()
        written = count / (time.perf_counter() - start)
        recorder.update_terms(routes("1000000"))
        alone = await measured(recorder, "alone", min(count, 500))
        together = await measured(recorder, "together", min(count, 4_000), at_once=64)
        read = _milliseconds(lambda: ledger_reader(home).monthly_spending("p", clock.now()))
        ledger.close()
    longer, more = alone[1] / free[1], alone[1] / together[1]
    print(f"without a budget      {free[0]:8.1f} us of the loop a request (aim {AIM_MICROSECONDS})")
    print(f"under one, alone      {alone[1]:8.1f} us until it is on the disk: {longer:.0f} times as long")
    print(f"under one, 64 at once {together[1]:8.1f} us a request: {more:.1f} times as many as alone")
    print(f"on the disk           {written:8.0f} requests a second, opened, closed and written")
    print(f"spent this month      {read:8.2f} ms to read")


def _milliseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    uvloop.run(main(parser.parse_args().requests))
