"""Start the process of a gateway, restart it when it dies, and find it after a restart of the control plane.

There are two: the gateway of models, which serves the OpenAI API, and the object gateway, which serves S3.
Each outlives the control plane, so that requests continue. The next control plane adopts it if it is alive,
runs the same program with the same arguments, and answers; else it ends it and starts another one.
`stop_gateway` stops it permanently (`neo down`).
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
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import httpx

import neocloud
from neocloud.core.child_process import Child
from neocloud.core.process import Process
from neocloud.data_plane.gateway_keys import gateway_folder, object_gateway_folder
from neocloud.data_plane.process import allow_later_address

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
DRAIN_SECONDS = 20.0
"""How long answers under way may take after SIGTERM."""
START_SECONDS = 20.0
ADOPT_SECONDS = 60.0
"""How long an adopted one may take to answer on a busy machine; ending it would break answers under way."""
LOOK_SECONDS, HUNG_AFTER_LOOKS = 10.0, 3
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For plain HTTP: saves each client the 20 ms of reading the system's certificates."""


@dataclass(frozen=True)
class GatewayKind:
    """One of the kinds of gateways."""

    name: str
    """The name in messages: "the <name> does not answer"."""
    module: str
    """The module that `python -m` runs."""
    folder: Callable[[Path], Path]
    """Returns the folder of a home that has the record of its process."""
    log: str
    packages: tuple[str, ...]
    """The folders of its code: its own, and those that it imports."""
    health: str
    """The path that answers while it works."""
    port_setting: str
    tls_port_setting: str


MODEL_GATEWAY = GatewayKind(
    name="gateway",
    module="neocloud.model_gateway",
    folder=gateway_folder,
    log="gateway.log",
    packages=("model_gateway", "data_plane", "messages", "core"),
    health="/health",
    port_setting="gateway-port",
    tls_port_setting="gateway-tls-port",
)
OBJECT_GATEWAY = GatewayKind(
    name="object gateway",
    module="neocloud.object_gateway",
    folder=object_gateway_folder,
    log="objects.log",
    packages=("object_gateway", "object_store", "s3_client", "data_plane", "messages", "core"),
    health="/-/health",  # no bucket can have this name
    port_setting="s3-port",
    tls_port_setting="s3-tls-port",
)


@dataclass(frozen=True)
class PublicGateway:
    """The addresses at which other machines reach the gateway, over TLS."""

    addresses: tuple[str, ...]
    """Addresses of this host; 0.0.0.0 and :: stand for each."""
    port: int
    certificate: Path
    key: Path

    def arguments(self) -> list[str]:
        listened = [f"--tls-host={address}" for address in self.addresses]
        files = ["--tls-certificate", str(self.certificate), "--tls-key", str(self.key)]
        return [*listened, "--tls-port", str(self.port), *files]


Command = Callable[[int], Sequence[str]]
"""The command to run, by the port it has to listen on."""


class GatewayProcess:
    """A gateway of a state folder, at most one of a kind. For the process that holds the folder's lock."""

    def __init__(
        self,
        home: Path,
        port: int,
        command: Command,
        public: PublicGateway | None = None,
        *,
        kind: GatewayKind = MODEL_GATEWAY,
        workload_port: int = 0,
    ) -> None:
        """With `port` 0 it keeps its last port, or takes a free one. `workload_port`: where the command has
        it listen for workloads; 0: nowhere."""
        self._kind = kind
        self._public = public
        self._workload_port = workload_port
        self._home = home
        self._port = port
        self._command = command
        self._child = _child(home, kind)

    @classmethod
    def of(
        cls,
        home: Path,
        port: int,
        api: str,
        options: Sequence[str] = (),
        *,
        kind: GatewayKind = MODEL_GATEWAY,
        public: PublicGateway | None = None,
        workload_port: int = 0,
        log_level: str = "info",
        log_format: str = "text",
    ) -> "GatewayProcess":
        """Return the supervisor of the real gateway.

        `api` is where the control plane listens for gRPC, `options` are further options of the gateway.
        """
        program = [sys.executable, "-m", kind.module, "--home", str(home), *options]
        program += ["--log-level", log_level, "--log-format", log_format]
        program += public.arguments() if public else []

        def command(chosen: int) -> Sequence[str]:
            return [*program, "--port", str(chosen), "--api", api]

        return cls(home, port, command, public, kind=kind, workload_port=workload_port)

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self._port}"

    @property
    def public_port(self) -> int:
        """Return the port at which other machines reach it; 0: none."""
        return self._public.port if self._public else 0

    async def start(self) -> str:
        """Adopt the running gateway or start one. Returns its address once it answers or had time to."""
        self._port = self._port or self._port_of_before()
        if not await self._adopt():
            _require_free(LOOPBACK, self._port, self._kind.port_setting, self._kind)
            for address in self._public.addresses if self._public else ():
                _require_free(address, self.public_port, self._kind.tls_port_setting, self._kind)
            self._spawn()
        if not await self._answers_within(START_SECONDS):
            logger.error(
                "the %s does not answer on %s yet; its log: %s",
                self._kind.name,
                self.address,
                self._child.log_file,
            )
        return self.address

    async def watch(self) -> None:
        """Restart it whenever it has ended or hangs. Never returns."""
        loop = asyncio.get_running_loop()
        while True:
            assert self._child.process is not None, "It has been started."
            began = loop.time()
            await self._until_ended(self._child.process)
            await asyncio.sleep(self._child.note_death(loop.time() - began))
            await self._spawn_again()

    async def stop(self) -> None:
        """End it; answers under way get the drain time."""
        await stop_gateway(self._home, self._kind)

    async def _spawn_again(self) -> None:
        while True:
            try:
                return self._spawn()
            except OSError as error:
                logger.error(
                    "the %s cannot be started: %s; again in %g s", self._kind.name, error, LOOK_SECONDS
                )
                await asyncio.sleep(LOOK_SECONDS)

    async def _until_ended(self, process: Process) -> None:
        misses = 0
        while not await ended_within(process, LOOK_SECONDS):
            misses = 0 if await self._answers() else misses + 1
            if misses == HUNG_AFTER_LOOKS:
                logger.error(
                    "the %s (process %d) does not answer any more; it is ended", self._kind.name, process.pid
                )
                process.send(signal.SIGKILL)

    def _port_of_before(self) -> int:
        before = int(self._child.record().get("port", 0))
        return before if self._child.find() else _free_port(before)

    def _arguments(self) -> list[str]:
        return list(self._command(self._port))

    async def _adopt(self) -> bool:
        process = self._child.find()
        if process is None:
            return False
        record, program = self._child.record(), _program(self._kind)
        is_same = record.get("arguments") == self._arguments() and record.get("program") == program
        self._child.adopt(process)
        if is_same and await self._answers_within(ADOPT_SECONDS):
            logger.info("adopted the %s that kept running (process %d)", self._kind.name, process.pid)
            return True
        logger.info("the %s (process %d) is of an earlier start; it is ended", self._kind.name, process.pid)
        await asyncio.to_thread(process.stop, DRAIN_SECONDS)
        return False

    def _spawn(self) -> None:
        arguments = self._arguments()
        ports = {"port": self._port, "public_port": self.public_port, "workload_port": self._workload_port}
        details = {**ports, "arguments": arguments, "program": _program(self._kind)}
        process = self._child.start(arguments, details=details)
        logger.info("the %s is process %d on %s", self._kind.name, process.pid, self.address)

    async def _answers_within(self, seconds: float) -> bool:
        deadline = asyncio.get_running_loop().time() + seconds
        while not await self._answers():
            is_over = asyncio.get_running_loop().time() > deadline
            if is_over or (self._child.process is not None and self._child.process.wait(0)):
                return False
            await asyncio.sleep(0.05)
        return True

    async def _answers(self) -> bool:
        with suppress(httpx.HTTPError):
            async with httpx.AsyncClient(trust_env=False, timeout=LOOK_SECONDS, verify=_NO_TLS) as client:
                return (await client.get(f"http://{self.address}{self._kind.health}")).is_success
        return False


async def stop_gateway(home: Path, kind: GatewayKind = MODEL_GATEWAY) -> None:
    """End the gateway of this kind and home, if there is one; answers under way get the drain time.

    Its record stays, as the next gateway takes the port of this one if it may choose.
    """
    process = _child(home, kind).find()
    if process is not None:
        await asyncio.to_thread(process.stop, DRAIN_SECONDS)


async def ended_within(process: Process, seconds: float) -> bool:
    """Wait this long for the end of a process. Returns True as soon as it has ended."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(process, ended.set)
    try:
        # Not `wait_for`: up to Python 3.11 it may lose a cancellation that comes with the end.
        async with asyncio.timeout(seconds):
            await ended.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(process)
    process.reap()
    return True


def _child(home: Path, kind: GatewayKind) -> Child:
    return Child(kind.name, home / "log" / kind.log, kind.folder(home) / "process.json")


def _program(kind: GatewayKind = MODEL_GATEWAY) -> str:
    """Return a fingerprint of the gateway's program, which changes with the release and with any file."""
    folders = [Path(neocloud.__file__).parent / name for name in kind.packages]
    found = [each for folder in folders for each in folder.rglob("*")]
    files = sorted(each for each in found if each.is_file() and each.suffix != ".pyc")
    states = [(str(each), each.stat().st_mtime_ns, each.stat().st_size) for each in files]
    return sha256(json.dumps([neocloud.__version__, states]).encode()).hexdigest()[:16]


def public_port(home: Path, addresses: Sequence[str], chosen: int, kind: GatewayKind = MODEL_GATEWAY) -> int:
    """Return the port for other machines: the chosen one, else the last one if it is free, else any."""
    child = _child(home, kind)
    before = int(child.record().get("public_port", 0))
    if chosen or (before and child.find()):
        return chosen or before
    return _free_port(before, addresses[0])


def workload_port(home: Path, address: str) -> int:
    """Return the port of the object gateway at the address for workloads, which the engine adds later: the
    last one if it is free, else any."""
    child = _child(home, OBJECT_GATEWAY)
    before = int(child.record().get("workload_port", 0))
    return before if before and child.find() else _free_port(before, address, is_added_later=True)


def _require_free(address: str, port: int, setting: str, kind: GatewayKind) -> None:
    with _probe(address) as probe:
        try:
            probe.bind((address, port))
        except OSError:
            raise OSError(
                f"Port {port} on {address} is taken, and the {kind.name} is to listen there."
                " Stop what does, or choose another (0 takes any that is free):"
                f" `neo config set {setting} PORT`."
            ) from None


def _probe(address: str) -> socket.socket:
    probe = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if probe.family == socket.AF_INET6:
        probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return probe


def _free_port(preferred: int, address: str = LOOPBACK, *, is_added_later: bool = False) -> int:
    for port in (preferred, 0):
        with _probe(address) as probe, suppress(OSError):
            if is_added_later:
                allow_later_address(probe)
            probe.bind((address, port))
            return probe.getsockname()[1]
    raise OSError(f"No port of {address} is free for the gateway.")
