"""Check answers and ledger under load while replicas are killed and clients leave.

Mock engines as processes: every second or so one of them (sometimes all) is killed with -9, and started
again on its port. Clients ask for whole answers and for streams, one in ten leaves in the middle. In the
end each request that was answered must be in the ledger once with the same tokens that its client got; each
that ended with an error must be there as estimated, or not charged.

    python bench/gateway_faults.py [--minutes 1] [--streams 24] [--engines 3]
"""

import argparse
import asyncio
import contextlib
import json
import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from neocloud.model_gateway.routing.upstream import ConnectionPool
from neocloud.testing.gateway import (
    EngineProcess,
    GatewayProcess,
    engine_process,
    free_port,
    gateway_process,
    route,
)
from neocloud.testing.mock_engine import Behaviour
from neocloud.testing.stream_load import Outcome, ask, request_bytes

TOKENS = 40
TOKEN_SECONDS = 0.01


@dataclass
class Seen:
    """The outcomes that clients saw."""

    outcomes: list[Outcome] = field(default_factory=list)
    left: int = 0
    kills: int = 0


def make_request(address: str, token: str, chance: random.Random) -> bytes:
    words = " ".join(["word"] * chance.randint(1, 200))
    fields: dict[str, Any] = {"model": "bank", "messages": [{"role": "user", "content": words}]}
    fields["max_tokens"] = chance.randint(1, TOKENS)
    if chance.random() < 0.7:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    return request_bytes(address, token, fields)


async def client(gateway: GatewayProcess, seen: Seen, until: float, chance: random.Random) -> None:
    address = gateway.url.removeprefix("http://")
    pool = ConnectionPool()
    while time.monotonic() < until:
        request = make_request(address, gateway.token, chance)
        if chance.random() < 0.1:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(chance.random() * TOKENS * TOKEN_SECONDS):
                    seen.outcomes.append(await ask(pool, address, request))
                    continue
            seen.left += 1
            continue
        outcome = await ask(pool, address, request)
        seen.outcomes.append(outcome)
        if outcome.has_error:
            await asyncio.sleep(0.05)
    pool.close()


async def kill_some(
    ports: list[int], living: dict[int, Any], seen: Seen, until: float, chance: random.Random
) -> None:
    """Kill mostly one at a time, so that another replica remains; sometimes all."""
    while time.monotonic() < until - 2:
        await asyncio.sleep(0.4 + chance.random())
        chosen = ports if chance.random() < 0.1 else [chance.choice(ports)]
        for port in chosen:
            await asyncio.to_thread(living.pop(port).close)
            seen.kills += 1
        await asyncio.sleep(chance.random())
        for port in chosen:
            living[port] = await asyncio.to_thread(start_engine, port)


def start_engine(port: int) -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    behaviour = Behaviour(tokens=TOKENS, token_seconds=TOKEN_SECONDS)
    engine: EngineProcess = stack.enter_context(engine_process(behaviour, port=port))
    stack.callback(engine.kill)
    return stack


async def load(gateway: GatewayProcess, ports: list[int], options: argparse.Namespace) -> Seen:
    seen, chance = Seen(), random.Random(options.seed)
    until = time.monotonic() + options.minutes * 60
    living = {port: start_engine(port) for port in ports}
    try:
        clients = [
            client(gateway, seen, until, random.Random(chance.random())) for _ in range(options.streams)
        ]
        await asyncio.gather(kill_some(ports, living, seen, until, chance), *clients)
    finally:
        for stack in living.values():
            stack.close()
    return seen


def ledger_rows(home: Path) -> dict[str, sqlite3.Row]:
    connection = sqlite3.connect(home / "gateway" / "ledger.db")
    connection.row_factory = sqlite3.Row
    rows = connection.execute("SELECT * FROM requests").fetchall()
    connection.close()
    by_id = {row["request_id"]: row for row in rows}
    assert len(by_id) == len(rows), "a request is in the ledger twice"
    return by_id


def compare(seen: Seen, rows: dict[str, sqlite3.Row]) -> list[str]:
    """Return the differences between ledger and clients."""
    wrong = []
    sent, written = Counter[str](), Counter[str]()
    for outcome in seen.outcomes:
        row = rows.get(outcome.request_id)
        if outcome.status == 0 or not (outcome.is_whole or outcome.has_error):
            wrong.append(f"{outcome.request_id}: ended without an answer and without an error")
        elif outcome.has_error:
            if row is not None and row["output"] and not row["is_estimated"]:
                wrong.append(f"{outcome.request_id}: charged in full although it failed: {dict(row)}")
        elif row is None:
            wrong.append(f"{outcome.request_id}: answered, and not in the ledger")
        else:
            usage = outcome.usage() or {}
            pair = (usage["prompt_tokens"], usage["completion_tokens"])
            if (row["input"], row["output"]) != pair or row["is_estimated"]:
                wrong.append(f"{outcome.request_id}: the client got {pair}, the ledger says {dict(row)}")
            sent.update(input=pair[0], output=pair[1])
            written.update(input=row["input"], output=row["output"])
    if sent != written:
        wrong.append(f"sums differ: {sent} and {written}")
    wrong += [f"{row['request_id']}: never closed" for row in rows.values() if row["ended_at"] is None]
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--streams", type=int, default=24)
    parser.add_argument("--engines", type=int, default=3)
    parser.add_argument("--seed", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        with gateway_process(Path(home), "--requests-per-second", "0") as gateway:
            ports = [free_port() for _ in range(options.engines)]
            gateway.set_routes(route("bank", replicas=[f"127.0.0.1:{port}" for port in ports]))
            seen = uvloop.run(load(gateway, ports, options))
        rows = ledger_rows(Path(home))
        log = (Path(home) / "gateway.log").read_text()
    wrong = compare(seen, rows)
    if "Traceback" in log:
        wrong.append(f"the gateway's log has: {log[log.index('Traceback') :][:2000]}")
    errors = Counter(
        json.loads(match)["error"]["code"]
        for outcome in seen.outcomes
        if outcome.has_error and (match := error_event(outcome.content))
    )
    whole = sum(not outcome.has_error for outcome in seen.outcomes)
    print(
        f"{len(seen.outcomes)} requests, {seen.kills} engines killed, {seen.left} clients left in the middle"
    )
    print(f"answered {whole}; got an error {sum(errors.values())}: {dict(errors)}")
    print(f"ledger: {len(rows)} rows, by outcome {dict(Counter(row['outcome'] for row in rows.values()))}")
    sums = [
        sum(row[name] or 0 for row in rows.values() if not row["is_estimated"])
        for name in ("input", "output")
    ]
    print(f"tokens counted by the engines and sent to clients: {sums[0]} in, {sums[1]} out")
    print("wrong: nothing" if not wrong else "wrong:\n  " + "\n  ".join(wrong[:20]))
    sys.exit(bool(wrong))


def error_event(content: bytes) -> bytes:
    last = content.strip().split(b"\n\n")[-1]
    return last.removeprefix(b"data: ") if b'"error"' in last else b""


if __name__ == "__main__":
    main()
