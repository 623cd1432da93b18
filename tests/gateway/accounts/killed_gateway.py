"""A process that keeps accounts until it is killed: `python killed_gateway.py LEDGER BUDGET`.

Tells each step only when it is on the disk, so whoever reads knows what must be there afterwards.
"""

import asyncio
import sys
from pathlib import Path

from neocloud.core.clock import SystemClock
from neocloud.gateway.accounts import AccountBook, TokenUsage, open_ledger
from tests.gateway.accounts.conftest import PROJECT, opening, routes


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def main(path: Path, budget: str) -> None:
    clock = SystemClock()
    book = AccountBook(open_ledger(path, clock), clock)
    book.follow(routes(tokens=0, budgets=((PROJECT, budget),) if budget else ()))
    for number in range(30):
        account = await book.open(opening(f"closed{number}", 10, 10))
        account.close(TokenUsage(10, 2, 5), "ok")
    await book.flush()
    say("closed", 30)
    for number in range(20):
        await book.open(opening(f"open{number}", 7, 1_000))
    if not budget:
        await book.flush()
    say("open", 20)
    number = 0
    while True:  # the kill comes here, in the middle of writing
        account = await book.open(opening(f"running{number}", 3, 3))
        account.close(TokenUsage(3, 0, 3), "ok")
        number += 1
        if number % 50 == 0:
            await book.flush()
            say("running", number)


asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
