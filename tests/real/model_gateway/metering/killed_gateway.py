"""A process that keeps accounts until it is killed: `python killed_gateway.py LEDGER BUDGET`.

Prints each step only when it is on the disk, so the reader knows what must be there afterwards.
"""

import asyncio
import sys
from pathlib import Path

from neocloud.core.clock import SystemClock
from neocloud.model_gateway.metering.ledger import open_ledger
from neocloud.model_gateway.metering.recorder import UsageRecorder
from neocloud.model_gateway.metering.usage import TokenUsage
from tests.fast.model_gateway.metering.conftest import PROJECT, request_start, routes


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def main(path: Path, budget: str) -> None:
    clock = SystemClock()
    recorder = UsageRecorder(open_ledger(path, clock), clock)
    recorder.update_terms(routes(tokens=0, budgets=((PROJECT, budget),) if budget else ()))
    for number in range(30):
        account = await recorder.open(request_start(f"closed{number}", 10, 10))
        account.close(TokenUsage(10, 2, 5), "ok")
    await recorder.flush()
    say("closed", 30)
    for number in range(20):
        await recorder.open(request_start(f"open{number}", 7, 1_000))
    if not budget:
        await recorder.flush()
    say("open", 20)
    number = 0
    while True:  # the kill comes here, in the middle of writing
        account = await recorder.open(request_start(f"running{number}", 3, 3))
        account.close(TokenUsage(3, 0, 3), "ok")
        number += 1
        if number % 50 == 0:
            await recorder.flush()
            say("running", number)


asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
