# pyright: strict

"""Start the gateway's process, restart it when it dies, and find it after a restart of the control plane.

It outlives the control plane, so that requests go on. The next control plane adopts it if it is alive, runs
the same program with the same arguments, and answers; else it ends it and starts another one. `stop_gateway`
ends it for good (`neo down`).
"""

import asyncio
import json
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import httpx

import neocloud
from neocloud.control_plane.process import Process
from neocloud.core.gateway_key import gateway_folder
from neocloud.core.osfiles import make_private_parents, write_file

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
DRAIN_SECONDS = 20.0
"""How long answers under way may take after SIGTERM."""
START_SECONDS = 20.0
FIRST_BACK_OFF_SECONDS, LONGEST_BACK_OFF_SECONDS = 0.2, 10.0
GOOD_LIFE_SECONDS = 60.0
"""After a life this long, the first restart has the shortest pause."""
LOOK_SECONDS, HUNG_AFTER_LOOKS = 10.0, 3
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For plain HTTP: saves each client the 20 ms of reading the system's certificates."""
LOG_LIMIT_BYTES = 20 * 1024 * 1024

Command = Callable[[int], Sequence[str]]
"""What to run, by the port it has to listen on."""


class GatewayProcess:
    """The gateway of a state folder, at most one. For the process that holds the folder's lock."""

    def __init__(self, home: Path, port: int, command: Command) -> None:
        """With `port` 0 it keeps its last port, or takes a free one."""
        self._home = home
        self._port = port
        self._command = command
        self._process: Process | None = None
        self._deaths = 0

    @classmethod
    def of(
        cls,
        home: Path,
        port: int,
        api: str,
        hosts: Sequence[str] = (),
        media_domains: Sequence[str] = (),
        *,
        log_level: str = "info",
        log_format: str = "text",
    ) -> "GatewayProcess":
        """Return the supervisor of the real gateway.

        `api` is where the control plane listens for gRPC, `hosts` are further names of the gateway and
        `media_domains` the hosts of media that requests may name.
        """
        program = [sys.executable, "-m", "neocloud.gateway", "--home", str(home)]
        program += [f"--known-host={host}" for host in hosts]
        program += [f"--media-domain={domain}" for domain in media_domains]
        program += ["--log-level", log_level, "--log-format", log_format]
        return cls(home, port, lambda chosen: [*program, "--port", str(chosen), "--api", api])

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self._port}"

    async def start(self) -> str:
        """Adopt the running gateway or start one. Returns its address once it answers or had time to."""
        self._port = self._port or self._port_of_before()
        self._process = await self._adopt()
        if self._process is None:
            _require_free(self._port)
            self._process = self._spawn()
        if not await self._answers_within(START_SECONDS):
            logger.error(
                "the gateway does not answer on %s yet; its log: %s", self.address, log_file(self._home)
            )
        return self.address

    async def watch(self) -> None:
        """Restart it whenever it has ended or hangs. Never returns."""
        loop = asyncio.get_running_loop()
        while True:
            assert self._process is not None, "It has been started."
            began = loop.time()
            await self._until_ended(self._process)
            self._deaths = 1 if loop.time() - began >= GOOD_LIFE_SECONDS else self._deaths + 1
            pause = min(FIRST_BACK_OFF_SECONDS * 2 ** (self._deaths - 1), LONGEST_BACK_OFF_SECONDS)
            logger.warning("the gateway (process %d) ended; again in %g s", self._process.pid, pause)
            await asyncio.sleep(pause)
            self._process = self._spawn()

    async def _until_ended(self, process: Process) -> None:
        misses = 0
        while not await process.ended_within(LOOK_SECONDS):
            misses = 0 if await self._answers() else misses + 1
            if misses == HUNG_AFTER_LOOKS:
                logger.error("the gateway (process %d) does not answer any more; it is ended", process.pid)
                process.send(signal.SIGKILL)

    def _port_of_before(self) -> int:
        before = int(_read_record(self._home).get("port", 0))
        return before if _running(self._home) else _free_port(before)

    def _arguments(self) -> list[str]:
        return list(self._command(self._port))

    async def _adopt(self) -> Process | None:
        process = _running(self._home)
        if process is None:
            return None
        record = _read_record(self._home)
        is_same = record.get("arguments") == self._arguments() and record.get("program") == _program()
        if is_same and await self._answers_within(LOOK_SECONDS):
            logger.info("the gateway (process %d) went on; adopted", process.pid)
            return process
        logger.info("the gateway (process %d) is of an earlier start; it is ended", process.pid)
        await _end(process)
        return None

    def _spawn(self) -> Process:
        arguments = self._arguments()
        file = log_file(self._home)
        file.parent.mkdir(exist_ok=True)
        if file.exists() and file.stat().st_size > LOG_LIMIT_BYTES:
            file.replace(file.with_suffix(".log.1"))
        with file.open("ab") as output:
            process = Process.start(arguments, output)
        _write_record(self._home, process, self._port, arguments)
        logger.info("the gateway is process %d on %s", process.pid, self.address)
        return process

    async def _answers_within(self, seconds: float) -> bool:
        deadline = asyncio.get_running_loop().time() + seconds
        while not await self._answers():
            is_over = asyncio.get_running_loop().time() > deadline
            if is_over or (self._process is not None and await self._process.ended_within(0)):
                return False
            await asyncio.sleep(0.05)
        return True

    async def _answers(self) -> bool:
        with suppress(httpx.HTTPError):
            async with httpx.AsyncClient(trust_env=False, timeout=LOOK_SECONDS, verify=_NO_TLS) as client:
                return (await client.get(f"http://{self.address}/health")).is_success
        return False


async def stop_gateway(home: Path) -> None:
    """End the gateway of this home, if there is one; answers under way get the drain time."""
    process = _running(home)
    if process is not None:
        await _end(process)
    _record_file(home).unlink(missing_ok=True)


def log_file(home: Path) -> Path:
    return home / "log" / "gateway.log"


async def _end(process: Process) -> None:
    process.send(signal.SIGTERM)
    if not await process.ended_within(DRAIN_SECONDS):
        process.send(signal.SIGKILL)
        await process.ended_within(DRAIN_SECONDS)


def _running(home: Path) -> Process | None:
    """Return the recorded process; None when it has ended, even if its number is in use again."""
    record = _read_record(home)
    return Process.find(int(record.get("pid", 0)), int(record.get("began", 0)))


def _record_file(home: Path) -> Path:
    return gateway_folder(home) / "process.json"


def _read_record(home: Path) -> dict[str, Any]:
    try:
        record = json.loads(_record_file(home).read_text())
    except (OSError, ValueError):
        return {}
    return cast(dict[str, Any], record) if isinstance(record, dict) else {}


def _write_record(home: Path, process: Process, port: int, arguments: Sequence[str]) -> None:
    file = _record_file(home)
    make_private_parents(file)
    record = {"pid": process.pid, "began": process.began, "port": port, "arguments": list(arguments)}
    write_file(file, json.dumps({**record, "program": _program()}, indent=2))


def _program() -> str:
    """Return a fingerprint of the gateway's program, which changes with the release and with any file."""
    folder = Path(neocloud.__file__).parent / "gateway"
    files = sorted(each for each in folder.rglob("*") if each.is_file() and each.suffix != ".pyc")
    states = [(str(each), each.stat().st_mtime_ns, each.stat().st_size) for each in files]
    return sha256(json.dumps([neocloud.__version__, states]).encode()).hexdigest()[:16]


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            raise OSError(
                f"Port {port} on {LOOPBACK} is taken, and the gateway is to listen there."
                " Stop what does, or choose another with --gateway-port (0 takes any that is free)."
            ) from None


def _free_port(preferred: int) -> int:
    for port in (preferred, 0):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
            return probe.getsockname()[1]
    raise OSError(f"No port of {LOOPBACK} is free for the gateway.")
