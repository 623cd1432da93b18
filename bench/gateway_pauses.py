#!/usr/bin/env python3
"""Measure the first token of requests after a pause, when what the gateway knew of a caller is too old.

A mock engine answers streams, direct and through two gateways in turn: one whose control plane says until
when it may be asked again without the token, so that the gateway asks in the pause, and one whose control
plane does not. The control plane answers a question about a caller in 30 ms, as a real one at work does.

    python bench/gateway_pauses.py [--pause 12] [--pauses 6] [--streams 1,8,32]
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import grpc
import uvloop
from neocloud.messages.neocloud.inference.v1 import AdmitRequest, AdmitResponse

from neocloud.model_gateway.routing.upstream import ConnectionPool
from neocloud.model_gateway.settings import GatewaySettings
from neocloud.testing.gateway import FakeControlPlane, engine_process, gateway_process, route
from neocloud.testing.mock_engine import Behaviour
from neocloud.testing.stream_load import ask, request_bytes

TOKEN = "key-a"
ANSWER_SECONDS = 0.03
BODY = {"model": "bank", "messages": [{"role": "user", "content": "Hello"}], "stream": True, "max_tokens": 4}
Times = defaultdict[tuple[str, int], list[float]]
"""Seconds to the first byte, by way and streams at a time."""


class ControlPlane(FakeControlPlane):
    def __init__(self, *, renews: bool) -> None:
        super().__init__()
        self._renews = renews

    def _admit(self, request: AdmitRequest, context: grpc.ServicerContext) -> AdmitResponse:
        time.sleep(ANSWER_SECONDS)
        answer = super()._admit(request, context)
        if not self._renews:
            answer.ClearField("renew_until")
        return answer


async def measure(ways: dict[str, str], all_streams: list[int], pause: float, pauses: int) -> Times:
    pool = ConnectionPool()
    found: Times = defaultdict(list)
    for number in range(-1, pauses):  # the first opens connections
        for streams in all_streams:
            await asyncio.sleep(pause if number >= 0 else 0)
            # Forwards, then backwards, so that none always follows the same one.
            for name in sorted(ways, reverse=bool(number % 2)):
                request = request_bytes(ways[name], TOKEN, BODY)
                outcomes = await asyncio.gather(*(ask(pool, ways[name], request) for _ in range(streams)))
                if not all(each.is_whole and not each.has_error for each in outcomes):
                    raise SystemExit(f"{name}: a request failed: {outcomes[0]}")
                if number >= 0:
                    found[name, streams] += [each.first_seconds for each in outcomes]
    pool.close()
    return found


def report(found: Times, ways: dict[str, str], all_streams: list[int]) -> None:
    print(f"{'streams':>8} {'through':<22}{'p50 ms':>10}{'p99 ms':>10}{'added p50':>12}{'added p99':>12}")
    for streams in all_streams:
        for name in ways:
            ranks = [rank(found[name, streams], share) for share in (0.5, 0.99)]
            direct = [rank(found["direct", streams], share) for share in (0.5, 0.99)]
            added = [one - other for one, other in zip(ranks, direct, strict=True)]
            print(f"{streams:>8} {name:<22}" + "".join(f"{1000 * each:>10.2f}" for each in ranks), end="")
            print("".join(f"{1000 * each:>+12.2f}" for each in added))


def rank(values: list[float], share: float) -> float:
    if share == 0.5:
        return statistics.median(values)
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def main() -> None:
    longer = GatewaySettings.admit_seconds + 2
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pause", type=float, default=longer, help="seconds; default: %(default)s")
    parser.add_argument("--pauses", type=int, default=6)
    parser.add_argument("--streams", default="1,8,32")
    options = parser.parse_args()
    all_streams = [int(number) for number in options.streams.split(",")]
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with ExitStack() as stack:
        engine = stack.enter_context(engine_process(Behaviour(tokens=4, token_seconds=0.0)))
        ways = {"direct": engine.address}
        for name, renews in (("gateway, not renewed", False), ("gateway, renewed", True)):
            home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            plane = ControlPlane(renews=renews)
            gateway = stack.enter_context(gateway_process(home, token=TOKEN, control_plane=plane))
            gateway.set_routes(route("bank", replicas=[engine.address]))
            ways[name] = gateway.url.removeprefix("http://")
        found = uvloop.run(measure(ways, all_streams, options.pause, options.pauses))
        report(found, ways, all_streams)
    print(f"load at the end: {os.getloadavg()[0]:.1f} (above 2: others were at work too)")


if __name__ == "__main__":
    main()
