"""Measure the speed of authenticated, authorised and durable calls, compared with a bare gRPC server.

Three kinds of call in one run on one machine, from the same client: a bare `grpc.aio` echo, Get of a service
account, and Create of one (durable: the database has synced before the answer). Rounds alternate, so that
other load on the machine affects all three alike; compare the ratios. The server's processor time
per call is the figure that a busy machine disturbs least.

    python bench/server.py [--seconds 3] [--rounds 5] [--callers 50]
"""

import argparse
import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import jwt
import psutil

from neocloud.core import contract
from neocloud.core.clock import SystemClock
from neocloud.core.service import Dependencies
from neocloud.core.store import load_or_make_key, open_store
from neocloud.server import ApiServer
from neocloud.services import iam

ACCOUNTS = "nebius.iam.v1.ServiceAccountService"
EXCHANGE = "nebius.iam.v1.TokenExchangeService/Exchange"
Call = Callable[[], Awaitable[Any]]


async def serve_echo() -> None:
    server = grpc.aio.server()

    async def echo(body: bytes, context: Any) -> bytes:
        return body

    class Echo(grpc.GenericRpcHandler):
        def service(self, handler_call_details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(echo)  # type: ignore[arg-type]

    server.add_generic_rpc_handlers((Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await announce_and_wait({"address": f"127.0.0.1:{port}"})
    await server.stop(0)


async def serve_cloud(home: Path) -> None:
    clock = SystemClock()
    store = await open_store(home / "state.db", load_or_make_key(home / "key"), clock)
    first = await iam.bootstrap(store, clock)
    server = ApiServer(
        [iam.SERVICE],
        iam.StoreAuthenticator(store, clock),
        iam.StoreAuthorizer(store, clock),
        Dependencies(store, clock, engine=None, settings=None),
    )
    await server.start()
    account = {"address": server.addresses.grpc, "project": first.project_id}
    await announce_and_wait(account | dict(first.credentials["subject-credentials"]))
    await server.stop(0)
    await store.close()


async def announce_and_wait(details: dict[str, str]) -> None:
    """Print the addresses of this server, then serve until the parent closes our standard input."""
    print(json.dumps(details), flush=True)
    await asyncio.to_thread(sys.stdin.read)


def start(stack: ExitStack, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, __file__, *arguments]
    process = stack.enter_context(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    )
    assert process.stdin is not None and process.stdout is not None
    stack.callback(process.stdin.close)
    return json.loads(process.stdout.readline()) | {"pid": process.pid}


async def sign_in(channel: grpc.aio.Channel, account: dict[str, Any]) -> str:
    now = int(time.time())
    claims = {"iss": account["iss"], "sub": account["sub"], "aud": "neocloud"}
    claims |= {"iat": now, "exp": now + 300}
    assertion = jwt.encode(claims, account["private-key"], "RS256", headers={"kid": account["kid"]})
    rpc = contract.method(EXCHANGE)
    request = rpc.input(
        grant_type="urn:ietf:params:oauth:grant-type:token-exchange",
        requested_token_type="urn:ietf:params:oauth:token-type:access_token",
        subject_token=assertion,
        subject_token_type="urn:ietf:params:oauth:token-type:jwt",
    )
    answer = await channel.unary_unary(f"/{EXCHANGE}")(request.SerializeToString())
    return rpc.output.FromString(answer).access_token


@dataclass(frozen=True)
class Pace:
    calls_per_second: float
    server_microseconds: float
    """Return the processor time of the server for each call."""


async def pace(call: Call, pid: int, callers: int, seconds: float) -> Pace:
    """Return how many calls per second this many callers get answered."""
    end = time.perf_counter() + seconds
    done = 0

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await call()
            done += 1

    used, started = processor_seconds(pid), time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    elapsed = time.perf_counter() - started
    return Pace(done / elapsed, (processor_seconds(pid) - used) / done * 1e6)


def processor_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


async def calls_of(
    cloud: grpc.aio.Channel, echo: grpc.aio.Channel, account: dict[str, str]
) -> dict[str, Call]:
    headers = (("authorization", f"Bearer {await sign_in(cloud, account)}"),)
    create_rpc, get_rpc = contract.method(f"{ACCOUNTS}/Create"), contract.method(f"{ACCOUNTS}/Get")
    create, get = cloud.unary_unary(f"/{create_rpc.path}"), cloud.unary_unary(f"/{get_rpc.path}")
    echo_call = echo.unary_unary("/echo.Echo/Echo")
    names = (f"bench-{number}" for number in itertools.count())

    async def make() -> bytes:
        request = create_rpc.input(metadata={"parent_id": account["project"], "name": next(names)})
        return await create(request.SerializeToString(), metadata=headers)

    made = create_rpc.output.FromString(await make())
    wanted = get_rpc.input(id=made.resource_id).SerializeToString()
    return {
        "echo": lambda: echo_call(wanted, metadata=headers),
        "get": lambda: get(wanted, metadata=headers),
        "create": make,
    }


async def measure(seconds: float, rounds: int, callers: int) -> None:
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(dir=Path.cwd()))
        echo = start(stack, "--serve", "echo")
        account = start(stack, "--serve", "cloud", "--home", home)
        async with (
            grpc.aio.insecure_channel(account["address"]) as cloud_channel,
            grpc.aio.insecure_channel(echo["address"]) as echo_channel,
        ):
            calls = await calls_of(cloud_channel, echo_channel, account)
            pids = {name: echo["pid"] if name == "echo" else account["pid"] for name in calls}
            for name, call in calls.items():
                await pace(call, pids[name], callers, seconds / 3)  # warm up
            many: dict[str, list[Pace]] = {name: [] for name in calls}
            alone: dict[str, list[Pace]] = {name: [] for name in calls}
            for _ in range(rounds):
                for name, call in calls.items():
                    many[name].append(await pace(call, pids[name], callers, seconds))
                    alone[name].append(await pace(call, pids[name], 1, seconds / 3))
    report(many, alone, callers)


def report(many: dict[str, list[Pace]], alone: dict[str, list[Pace]], callers: int) -> None:
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, client and server share {psutil.cpu_count()} cores, {callers} callers"
    )
    print(f"{'':8}{'calls/s':>10}{'to echo':>10}{'1 caller':>10}{'to echo':>10}{'server us':>11}{'to it':>8}")

    def median(found: list[Pace], what: str) -> float:
        return statistics.median(getattr(each, what) for each in found)

    for name in many:
        cells: list[str] = []
        for found in (many, alone):
            value, echo = (median(found[n], "calls_per_second") for n in (name, "echo"))
            cells.append(f"{value:10.0f}{value / echo:10.2f}")
        value, echo = (median(many[n], "server_microseconds") for n in (name, "echo"))
        print(f"{name:8}{''.join(cells)}{value:11.0f}{echo / value:8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--callers", type=int, default=50)
    parser.add_argument("--serve", choices=("echo", "cloud"), help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve == "echo":
        asyncio.run(serve_echo())
    elif given.serve == "cloud":
        asyncio.run(serve_cloud(given.home))
    else:
        asyncio.run(measure(given.seconds, given.rounds, given.callers))


if __name__ == "__main__":
    main()
