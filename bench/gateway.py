"""Measure the gateway's latency and its requests per core, compared with LiteLLM and sglang-router.

Two mock engines, in one run on one machine. Paced: streams of 64 tokens, 20 ms apart, as from a real engine;
direct and through each proxy with 1, 32 and 256 streams at a time: the time added to the first token and
to the whole. Instant: requests as fast as they are answered, one token each and 64 at a time, by `wrk`;
requests/s and the proxy's processor time for one of them. Each proxy has one core, engine and load the
other. Rounds alternate; three of them take ten minutes.

    python bench/gateway.py [--seconds 4] [--rounds 3] [--streams 1,32,256] [--only gateway,sglang]
    python bench/gateway.py --tls [--seconds 3] [--rounds 2] [--streams 1,32]

With --tls the gateway stands beside itself: plain and over TLS, on connections that are kept and with a new
one for each request.

LiteLLM and sglang-router are installed apart: scripts/install-client litellm-proxy, scripts/install-
client sglang-router. A proxy that is not installed is not_run.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import uvloop

from neocloud.model_gateway.routing.upstream import Connection, ConnectionPool
from neocloud.server import CertificateFolder, ensure_certificate
from neocloud.testing.gateway import engine_process, free_port, gateway_process, route
from neocloud.testing.mock_engine import Behaviour
from neocloud.testing.stream_load import Outcome, keep_asking, request_bytes
from neocloud.testing.waiting import wait_until

CLIENTS = Path(__file__).parents[1] / ".cache" / "clients"
TOKENS = 64
TOKEN_SECONDS = 0.02
TOKEN = "key-a"
MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant of a bank. Answer briefly, and never guess."},
    {"role": "user", "content": "How do I open an account, and what does it cost me a month?"},
]
LOAD_CORE, PROXY_CORE = 0, 1
START_SECONDS = 180


@dataclass
class Place:
    """A target of requests."""

    name: str
    address: str
    process: psutil.Process | None = None
    tls: bool = False
    is_fresh: bool = False
    """Each request comes on a new connection."""
    first: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    whole: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    failed: int = 0
    rates: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    costs: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    """Processor time of one request, in microseconds."""

    def processor_seconds(self) -> float:
        if self.process is None:
            return 0.0
        family = [self.process, *self.process.children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in family)


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "bank", "messages": MESSAGES, **fields}


def pin(process: psutil.Process, core: int) -> None:
    for one in [process, *process.children(recursive=True)]:
        for thread in one.threads():
            os.sched_setaffinity(thread.id, {core})
        one.cpu_affinity([core])


@contextmanager
def our_gateway(engine: str) -> Iterator[Place]:
    with (
        tempfile.TemporaryDirectory() as home,
        gateway_process(Path(home), "--requests-per-second", "0", token=TOKEN) as gateway,
    ):
        gateway.set_routes(route("bank", replicas=[engine]))
        yield Place("gateway", gateway.url.removeprefix("http://"), psutil.Process(gateway.process.pid))


@contextmanager
def gateway_with_tls(engine: str) -> Iterator[list[Place]]:
    """Yield one gateway in four ways: plain and over TLS, on kept connections and on new ones."""
    with tempfile.TemporaryDirectory() as folder:
        home, port = Path(folder), free_port()
        ensure_certificate(home / "tls", ("localhost", "127.0.0.1"), datetime.now(UTC))
        files = CertificateFolder(home / "tls")
        options = ["--requests-per-second", "0", "--tls-host", "127.0.0.1", "--tls-port", str(port)]
        options += ["--tls-certificate", str(files.server), "--tls-key", str(files.server_key)]
        with gateway_process(home, *options, token=TOKEN) as gateway:
            gateway.set_routes(route("bank", replicas=[engine]))
            process = psutil.Process(gateway.process.pid)
            plain, over_tls = gateway.url.removeprefix("http://"), f"127.0.0.1:{port}"
            yield [
                Place("gateway", plain, process),
                Place("tls", over_tls, process, tls=True),
                Place("new", plain, process, is_fresh=True),
                Place("tls new", over_tls, process, tls=True, is_fresh=True),
            ]


class Pool(ConnectionPool):
    """Opens connections as a place wants them. Nothing is verified: the client's work is not measured."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._is_fresh = place.is_fresh
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if place.tls else None
        if self._context is not None:
            self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE

    async def acquire(self, address: str, *, fresh: bool = False) -> Connection:
        if self._context is None or (self._idle[address] and not self._is_fresh):
            return await super().acquire(address, fresh=self._is_fresh)
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(Connection, host, int(port), ssl=self._context))[1]

    def release(self, address: str, connection: Connection) -> None:
        if self._is_fresh:
            connection.abort()
        else:
            super().release(address, connection)


@contextmanager
def litellm(engine: str) -> Iterator[Place]:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        model = {"model": "openai/bank", "api_base": f"http://{engine}/v1", "api_key": "none"}
        config = {"model_list": [{"model_name": "bank", "litellm_params": model}]}
        config["general_settings"] = {"master_key": TOKEN}  # type: ignore[assignment]
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(config))
        command = [
            CLIENTS / "litellm-proxy/bin/litellm",
            "--config",
            file,
            "--port",
            port,
            "--num_workers",
            1,
        ]
        yield from other("litellm", command, port, "/health/liveliness")


@contextmanager
def sglang_router(engine: str) -> Iterator[Place]:
    port = free_port()
    command = [CLIENTS / "sglang-router/bin/sglang-router", "launch", "--worker-urls", f"http://{engine}"]
    command += ["--port", port, "--prometheus-port", free_port(), "--log-level", "warn"]
    command += ["--policy", "cache_aware", "--worker-startup-check-interval", 1]
    yield from other("sglang", command, port, "/health")


def other(name: str, command: list[Any], port: int, health: str) -> Iterator[Place]:
    """Start another project's proxy as its manual says."""
    if not command[0].exists():
        return
    environment = {**os.environ, "NO_PROXY": "*", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with tempfile.NamedTemporaryFile() as log:
        words = [str(word) for word in ["taskset", "-c", PROXY_CORE, *command]]
        process = subprocess.Popen(words, stdout=log, stderr=log, env=environment)
        try:
            wait_until(lambda: answers(f"http://127.0.0.1:{port}{health}"), seconds=START_SECONDS)
            yield Place(name, f"127.0.0.1:{port}", psutil.Process(process.pid))
        except AssertionError:
            print(f"{name} does not start: {Path(log.name).read_text()[-1000:]}")
        finally:
            process.terminate()
            process.wait(20)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def stream(place: Place, streams: int, seconds: float) -> None:
    request = request_bytes(place.address, TOKEN, body(stream=True, max_tokens=TOKENS))
    outcomes: list[Outcome] = uvloop.run(
        keep_asking(place.address, lambda number: request, streams=streams, seconds=seconds, pool=Pool(place))
    )
    good = [outcome for outcome in outcomes if outcome.is_whole and not outcome.has_error]
    place.failed += len(outcomes) - len(good)
    place.first[streams] += [outcome.first_seconds for outcome in good]
    place.whole[streams] += [outcome.seconds for outcome in good]


SCRIPT = """
wrk.method = "POST"
wrk.path = "/v1/chat/completions"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer {token}"
wrk.headers["Connection"] = "{connection}"
wrk.body = [[{body}]]
"""


def hammer(place: Place, kind: str, at_once: int, seconds: float) -> None:
    request = body(max_tokens=1) if kind == "one token" else body(max_tokens=TOKENS, stream=True)
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        connection = "close" if place.is_fresh else "keep-alive"
        script.write(SCRIPT.format(token=TOKEN, body=json.dumps(request), connection=connection))
        script.flush()
        before = place.processor_seconds()
        command = ["taskset", "-c", str(LOAD_CORE), "wrk", "-t1", f"-c{at_once}", f"-d{seconds:g}s"]
        command += ["--timeout", "20s", "-s", script.name]
        command.append(f"{'https' if place.tls else 'http'}://{place.address}")
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    number = int(re.search(r"(\d+) requests in", said)[1])  # type: ignore[index]
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", said)
    place.failed += int(bad[1]) if bad else 0
    if number:
        rate = float(re.search(r"Requests/sec: +([\d.]+)", said)[1])  # type: ignore[index]
        place.rates[kind, at_once].append(rate)
        place.costs[kind, at_once].append((place.processor_seconds() - before) / number * 1e6)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else float("nan")


def report(places: list[Place], all_streams: list[int]) -> None:
    direct = places[0]
    print(
        f"\nStreams of {TOKENS} tokens, {TOKEN_SECONDS * 1000:.0f} ms apart: added to the engine's own, in ms"
    )
    columns = ("first p50", "first p99", "whole p50", "whole p99")
    print(f"{'streams':>8} {'through':<9} " + " ".join(f"{column:>10}" for column in columns))
    for streams in all_streams:
        for place in places:
            numbers = []
            for mine, its in ((place.first, direct.first), (place.whole, direct.whole)):
                for share in (0.5, 0.99):
                    base = 0.0 if place is direct else percentile(its[streams], share)
                    numbers.append((percentile(mine[streams], share) - base) * 1000)
            sign = "" if place is direct else "+"
            print(f"{streams:>8} {place.name:<9} " + " ".join(f"{number:>{sign}10.2f}" for number in numbers))
    print("\nRequests/s, one core (median of rounds; in brackets the processor time of one, in microseconds)")
    for kind, at_once in direct.rates:
        cells = []
        for place in places:
            rates, costs = place.rates[kind, at_once], place.costs[kind, at_once]
            if rates:
                cells.append(f"{place.name} {statistics.median(rates):.0f} ({statistics.median(costs):.0f})")
        print(f"{kind:>10}, {at_once:>3} at a time: " + "   ".join(cells))
    print()
    for place in places:
        if place.failed:
            print(f"{place.name}: {place.failed} requests failed")


def aims(places: list[Place]) -> None:
    by_name = {place.name: place for place in places}
    ours, direct = by_name["gateway"], by_name["direct"]
    if 32 in direct.first:
        added = [
            (percentile(ours.first[32], share) - percentile(direct.first[32], share)) * 1000
            for share in (0.5, 0.99)
        ]
        print(f"added to the first token at 32 streams: p50 {added[0]:.2f} ms (aim: at most 1), ", end="")
        print(f"p99 {added[1]:.2f} ms (aim: at most 5)")
    compared = [
        ("gateway", "litellm", "aim: at least 5"),
        ("gateway", "sglang", "aim: at least 1"),
        ("tls", "gateway", "kept connections"),
        ("tls new", "new", "new connections"),
    ]
    for name, other_name, says in compared:
        if name not in by_name or other_name not in by_name:
            continue
        for kind, at_once in direct.rates:
            rates = [by_name[each].rates[kind, at_once] for each in (name, other_name)]
            if all(rates):
                ratio = statistics.median(rates[0]) / statistics.median(rates[1])
                print(f"requests/s, {name} to {other_name}, {kind}, {at_once} at a time: ", end="")
                print(f"{ratio:.2f} ({says})")


def proxies(names: list[str], engine: str, stack: ExitStack) -> Iterator[Place]:
    """Start them, each on the core of proxies."""
    known = {"gateway": our_gateway, "litellm": litellm, "sglang": sglang_router}
    for name in names:
        try:
            yield stack.enter_context(known[name](engine))
        except RuntimeError:  # the generator gave nothing: it is not installed
            print(f"{name}: not_run, it is not installed (scripts/install-client), or does not start")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="of load at a time; three rounds take ten minutes"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", default="1,32,256")
    parser.add_argument("--only", default="gateway,litellm,sglang", help="what is put beside the engine")
    parser.add_argument("--tls", action="store_true", help="the gateway alone, plain and over TLS")
    options = parser.parse_args()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    all_streams = [int(number) for number in options.streams.split(",")]
    os.sched_setaffinity(0, {LOAD_CORE})  # engines are started from here, and stay here
    with ExitStack() as stack:
        paced = stack.enter_context(engine_process(Behaviour(tokens=TOKENS, token_seconds=TOKEN_SECONDS)))
        names = [] if options.tls else options.only.split(",")
        ways = stack.enter_context(gateway_with_tls(paced.address)) if options.tls else []
        places = [Place("direct", paced.address), *ways, *proxies(names, paced.address, stack)]
        for place in places[1:]:
            assert place.process is not None
            pin(place.process, PROXY_CORE)
        for number in range(options.rounds):
            print(f"streams, round {number + 1} of {options.rounds}", file=sys.stderr)
            for streams in all_streams:
                for place in places:
                    stream(place, streams, options.seconds)
        if shutil.which("wrk"):
            paced.tell(token_seconds=0)
            time.sleep(0.5)
            for number in range(options.rounds):
                print(f"requests/s, round {number + 1} of {options.rounds}", file=sys.stderr)
                for kind in ("one token", "64 tokens"):
                    for at_once in all_streams:
                        for place in places:
                            hammer(place, kind, at_once, options.seconds)
        else:
            print("requests/s: not_run, there is no wrk (Debian: apt-get install wrk)")
        report(places, all_streams)
        aims(places)
        load = os.getloadavg()[0]
        print(f"load at the end: {load:.1f} on {os.cpu_count()} cores (above 2: others were at work too)")


if __name__ == "__main__":
    main()
