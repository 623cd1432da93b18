"""Measure how long another tenant waits while one tenant sends requests that once stopped the cloud.

Each abuse gets an emulator of its own, with two tenants in its store. The victim gets, lists and creates
service accounts one after another, all the time; the table shows the slowest answer of each, how the abuse
itself was answered, and what it left on the disk. Everything ends after --seconds, whatever the server does.

    python bench/abuse.py [--seconds 12] [--only NAME ...] [--source PATH ...]

With --source the server comes from that checkout instead of this one; given twice, both are measured:

    git worktree add /tmp/before 9817877
    python bench/abuse.py --source /tmp/before --source .
"""

import argparse
import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import jwt
import psutil

from neocloud.core import contract

ACCOUNTS = "nebius.iam.v1.ServiceAccountService"
CREATE_MACHINE = "nebius.compute.v1.InstanceService/Create"
SUBNETS = "nebius.vpc.v1.SubnetService/List"
EXCHANGE = "nebius.iam.v1.TokenExchangeService/Exchange"
HERE = Path(__file__).resolve().parents[1]
START_SECONDS = 60.0
PAUSE_SECONDS = 0.01
"""Pause of the victim between two calls."""
BEFOREHAND_SECONDS = 0.5
AFTERWARDS = 3
"""Number of the victim's calls after the end of the abuse."""
OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))

SEED = """
import asyncio, json, sys
from pathlib import Path
from neocloud.core.clock import SystemClock
from neocloud.core.store import load_or_make_key, open_store
from neocloud.services import iam

async def main(home):
    clock = SystemClock()
    store = await open_store(str(home / "state.db"), load_or_make_key(home / "store.key"), clock)
    found = {}
    for name in ("attackers", "victims"):
        first = await iam.bootstrap(store, clock, tenant_name=name)
        found[name] = {"project": first.project_id, **dict(first.credentials["subject-credentials"])}
    await store.close()
    print(json.dumps(found))

asyncio.run(main(Path(sys.argv[1])))
"""


@dataclass
class Caller:
    """A signed-in account."""

    channel: grpc.aio.Channel
    project: str
    token: str = ""

    async def call(self, path: str, request: Any, seconds: float) -> Any:
        return await self.send(path, request.SerializeToString(), seconds)

    async def send(self, path: str, body: bytes, seconds: float) -> Any:
        headers = (("authorization", f"Bearer {self.token}"),) if self.token else ()
        answered = await self.channel.unary_unary(f"/{path}")(body, metadata=headers, timeout=seconds)
        return contract.method(path).output.FromString(answered)


@dataclass
class Figures:
    """The result of one abuse on one server."""

    slowest: dict[str, float] = field(default_factory=lambda: {"get": 0.0, "list": 0.0, "create": 0.0})
    answers: Counter[str] = field(default_factory=Counter)
    took: float = 0.0
    stored_mb: float = 0.0
    memory_mb: float = 0.0


Abuse = Callable[[Caller, Callable[[str], None], float], Awaitable[None]]
"""Sends the abuse as this caller, reports the code of each answer, and limits the seconds of each call."""


async def answered(call: Awaitable[Any], tell: Callable[[str], None]) -> Any:
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        tell(error.code().name)
        return None
    tell("OK")
    return answer


def account(caller: Caller, name: str) -> Any:
    request = contract.method(f"{ACCOUNTS}/Create").input()
    request.metadata.parent_id, request.metadata.name = caller.project, name
    return request


async def instance(caller: Caller, seconds: float, user_data: str = "") -> Any:
    """Return a machine on the project's own subnet that the contract's annotations accept."""
    subnets = contract.method(SUBNETS).input(parent_id=caller.project)
    subnet = (await caller.call(SUBNETS, subnets, seconds)).items[0]
    request = contract.method(CREATE_MACHINE).input()
    request.metadata.parent_id, request.metadata.name = caller.project, "abuse"
    request.spec.resources.platform, request.spec.resources.preset = "cpu-d3", "4vcpu-16gb"
    request.spec.boot_disk.attach_mode = 2
    request.spec.boot_disk.managed_disk.name = "boot"
    request.spec.boot_disk.managed_disk.spec.size_gibibytes = 10
    request.spec.boot_disk.managed_disk.spec.type = 1
    request.spec.cloud_init_user_data = user_data
    request.spec.network_interfaces.add(name="eth0", subnet_id=subnet.metadata.id).ip_address.SetInParent()
    return request


async def nothing(caller: Caller, tell: Callable[[str], None], seconds: float) -> None:
    await asyncio.sleep(min(3.0, seconds / 2))


async def cloud_init(caller: Caller, tell: Callable[[str], None], seconds: float) -> None:
    """Seven levels of merge keys, 421 bytes."""
    lines = [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 8)]
    bomb = "\n".join(["#cloud-config", "a0: &a0 {x: 1}", *lines])
    await answered(caller.call(CREATE_MACHINE, await instance(caller, seconds, bomb), seconds), tell)


async def brackets(caller: Caller, tell: Callable[[str], None], seconds: float) -> None:
    """User data of 3 kB of "["."""
    request = await instance(caller, seconds, "#cloud-config\n" + "[" * 3000)
    await answered(caller.call(CREATE_MACHINE, request, seconds), tell)


async def labels(caller: Caller, tell: Callable[[str], None], seconds: float) -> None:
    """100,000 labels, 1.6 MB."""
    request = account(caller, "labels")
    request.metadata.labels.update({str(number): str(number) for number in range(100_000)})
    await answered(caller.call(f"{ACCOUNTS}/Create", request, seconds), tell)


async def lists(caller: Caller, tell: Callable[[str], None], seconds: float) -> None:
    """9,000 empty disks of one machine, 18 kB, for the validator."""
    request = await instance(caller, seconds)
    for _ in range(9000):
        request.spec.secondary_disks.add()
    await answered(caller.call(CREATE_MACHINE, request, seconds), tell)


async def history(caller: Caller, tell: Callable[[str], None], seconds: float) -> None:
    """A label of 4 MB, changed 15 times."""
    made = await answered(caller.call(f"{ACCOUNTS}/Create", account(caller, "history"), seconds), tell)
    update = contract.method(f"{ACCOUNTS}/Update").input()
    update.metadata.id = made.resource_id
    for number in range(15):
        update.metadata.labels["k"] = f"{number:x}" * 4_000_000
        await answered(caller.call(f"{ACCOUNTS}/Update", update, seconds), tell)


async def texts(caller: Caller, tell: Callable[[str], None], seconds: float) -> None:
    """Twenty simultaneous descriptions of 4 MB."""
    requests = [account(caller, f"text-{number}") for number in range(20)]
    for request in requests:
        request.spec.description = "d" * 4_000_000
    calls = [answered(caller.call(f"{ACCOUNTS}/Create", each, seconds), tell) for each in requests]
    await asyncio.gather(*calls)


async def passwords(caller: Caller, tell: Callable[[str], None], seconds: float) -> None:
    """64 simultaneous guesses, not signed in."""
    path = "neocloud.iam.v1.SignInService/WithPassword"
    anonymous = Caller(caller.channel, "")
    requests = [
        contract.method(path).input(email=f"someone{n}@example.com", password="a guess, or two")
        for n in range(64)
    ]
    await asyncio.gather(*(answered(anonymous.call(path, each, seconds), tell) for each in requests))


async def flood(caller: Caller, tell: Callable[[str], None], seconds: float) -> None:
    """Make as many calls as fifty callers can."""
    request = contract.method(f"{ACCOUNTS}/List").input(parent_id=caller.project)
    body, end = request.SerializeToString(), time.perf_counter() + seconds * 0.7

    async def one() -> None:
        while time.perf_counter() < end:
            await answered(caller.send(f"{ACCOUNTS}/List", body, seconds), tell)

    await asyncio.gather(*(one() for _ in range(50)))


ABUSES: dict[str, Abuse] = {
    "nothing": nothing,
    "cloud-init": cloud_init,
    "brackets": brackets,
    "labels": labels,
    "lists": lists,
    "history": history,
    "texts": texts,
    "passwords": passwords,
    "flood": flood,
}


def environment(source: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(source / "src")}


@contextmanager
def served(source: Path, home: Path) -> Iterator[tuple[psutil.Process, str, dict[str, Any]]]:
    """An emulator of this checkout: its process, its address, and the two tenants' accounts."""
    seeded = subprocess.run(
        [sys.executable, "-c", SEED, str(home)],
        env=environment(source),
        check=True,
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
    )
    command = [sys.executable, "-m", "neocloud.control_plane", "--emulator", "--home", str(home)]
    command += ["--grpc-port", "0", "--http-port", "0"]
    with (home / "bench.log").open("w") as log:
        process = subprocess.Popen(command, env=environment(source), stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not (home / "server.json").exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(
                        f"The server of {source} did not start: {(home / 'bench.log').read_text()}"
                    )
                time.sleep(0.05)
            address = json.loads((home / "server.json").read_text())["grpc"]
            yield psutil.Process(process.pid), address, json.loads(seeded.stdout)
        finally:
            process.kill()  # it may be busy with the abuse for an hour
            process.wait()


async def sign_in(channel: grpc.aio.Channel, known: dict[str, Any]) -> Caller:
    now = int(time.time())
    claims = {"iss": known["iss"], "sub": known["sub"], "aud": "neocloud", "iat": now, "exp": now + 300}
    request = contract.method(EXCHANGE).input(
        grant_type="urn:ietf:params:oauth:grant-type:token-exchange",
        requested_token_type="urn:ietf:params:oauth:token-type:access_token",
        subject_token=jwt.encode(claims, known["private-key"], "RS256", headers={"kid": known["kid"]}),
        subject_token_type="urn:ietf:params:oauth:token-type:jwt",
    )
    nobody = Caller(channel, known["project"])
    return Caller(
        channel, known["project"], (await nobody.call(EXCHANGE, request, START_SECONDS)).access_token
    )


async def suffer(victim: Caller, figures: Figures, is_over: asyncio.Event, seconds: float) -> None:
    """Call until the abuse is over and a few times more; a call that times out counts with its limit."""
    get = contract.method(f"{ACCOUNTS}/Get").input()
    names, left = (f"victim-{number}" for number in itertools.count()), AFTERWARDS
    while left:
        left -= is_over.is_set()
        for verb in figures.slowest:
            if verb == "create":
                request: Any = account(victim, next(names))
            else:
                request = (
                    get
                    if verb == "get"
                    else contract.method(f"{ACCOUNTS}/List").input(parent_id=victim.project, page_size=10)
                )
            began = time.perf_counter()
            with suppress(grpc.aio.AioRpcError):  # missing or late: only the time counts
                await victim.call(f"{ACCOUNTS}/{verb.title()}", request, seconds)
            figures.slowest[verb] = max(figures.slowest[verb], time.perf_counter() - began)
            await asyncio.sleep(PAUSE_SECONDS)


async def measure(source: Path, abuse: Abuse, seconds: float) -> Figures:
    figures = Figures()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as home, served(source, Path(home)) as server:
        process, address, known = server
        async with (
            grpc.aio.insecure_channel(address, options=OPTIONS) as ours,
            grpc.aio.insecure_channel(address, options=OPTIONS) as theirs,
        ):
            victim = await sign_in(ours, known["victims"])
            attacker = await sign_in(theirs, known["attackers"])
            is_over = asyncio.Event()
            stored, memory = disk_mb(home), process.memory_info().rss
            suffering = asyncio.create_task(suffer(victim, figures, is_over, seconds))
            await asyncio.sleep(BEFOREHAND_SECONDS)
            began = time.perf_counter()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await abuse(attacker, lambda code: figures.answers.update([code]), seconds)
            figures.took = time.perf_counter() - began
            is_over.set()
            await suffering
            figures.memory_mb = (process.memory_info().rss - memory) / 1e6
            figures.stored_mb = disk_mb(home) - stored
    return figures


def disk_mb(home: str) -> float:
    return sum(file.stat().st_size for file in Path(home).glob("state.db*")) / 1e6


async def measure_all(sources: list[Path], wanted: list[str], seconds: float) -> None:
    print(f"{datetime.now(UTC):%Y-%m-%d}, client and server share {psutil.cpu_count()} cores, in seconds")
    for number, source in enumerate(sources, start=1):
        print(f"server {number}: {source}")
    print(
        f"{'abuse':12}{'server':>7}{'get':>8}{'list':>8}{'create':>8}{'abuse took':>12}"
        f"{'disk MB':>9}{'memory MB':>11}  answers to the abuse"
    )
    for name in wanted:
        for number, source in enumerate(sources, start=1):
            found = await measure(source, ABUSES[name], seconds)
            slowest = "".join(f"{each:8.2f}" for each in found.slowest.values())
            codes = ", ".join(f"{count} {code}" for code, count in found.answers.most_common()) or "none"
            print(
                f"{name:12}{number:7}{slowest}{found.took:12.2f}{found.stored_mb:9.1f}"
                f"{found.memory_mb:11.0f}  {codes}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=12.0, help="for each abuse, and for each call")
    parser.add_argument("--only", nargs="+", choices=ABUSES, default=list(ABUSES), metavar="NAME")
    parser.add_argument("--source", type=Path, action="append", help="checkout whose server is measured")
    given = parser.parse_args()
    sources = [source.resolve() for source in given.source or [HERE]]
    asyncio.run(measure_all(sources, given.only, given.seconds))


if __name__ == "__main__":
    main()
