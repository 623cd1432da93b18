# pyright: standard
"""An emulated cloud for tests of clients: `with emulator() as cloud: cloud.sdk()`.

Uses the one that `NEOCLOUD_HOME` names when one runs there, as in a CI job that ran `neo up --emulator`; else
starts one in a temporary folder and ends it afterwards. Nothing real runs in it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nebius.base.options import INSECURE
from nebius.base.resolver import Constant
from nebius.sdk import SDK

from neocloud.client.connection import Client, connect_as
from neocloud.client.credentials import read_credentials
from neocloud.client.faults import CLEAR, FaultKind, inject

START_SECONDS = 120.0
"""The very first start on a machine reads the whole contract, which takes some seconds."""
STOP_SECONDS = 60.0


@dataclass(frozen=True)
class Emulator:
    """A running emulator."""

    home: Path
    endpoint: str
    """host:port of the gRPC API, plain text on loopback."""
    http_endpoint: str
    tls_endpoint: str
    """host:port of the gRPC API over TLS; "" unless it was requested."""
    s3_endpoint: str
    """URL of object storage."""
    tenant_id: str
    project_id: str
    client: Client
    """Call any method of the contract: `client.call("package.Service/Method", {...})`."""

    @property
    def credentials_file(self) -> Path:
        """The key of a service account in the form that published clients read."""
        return self.home / "credentials.json"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment for programs that tests start: enough for `neo` and for this module."""
        return {"NEOCLOUD_HOME": str(self.home)}

    def sdk(self, **options: Any) -> SDK:
        """Return the official SDK, signed in. Close it: `sync_close()`, or `async with`."""
        given = {
            "resolver": Constant(self.endpoint),
            "options": [(INSECURE, True)],
            "credentials_file_name": str(self.credentials_file),
            "user_agent_prefix": "neocloud-testing/1.0",
        }
        return SDK(**(given | options))

    def inject(self, kind: FaultKind | str, **details: Any) -> Any:
        """Make something go wrong: `inject("quota-exceeded", calls="DiskService/Create", count=2)`. The
        details are those of `neocloud.client.faults.inject`."""
        return inject(self.client, kind, **details)

    def clear_faults(self) -> None:
        self.client.call(CLEAR)


@contextmanager
def emulator(*, gpus: str = "", tls: bool = False) -> Iterator[Emulator]:
    """The emulator of `NEOCLOUD_HOME`, or one of its own. `gpus`: "8xH100,2xL40S"; empty means plenty. With
    `tls` it also serves TLS, under an authority of its own: `home / "tls" / "ca.pem"`."""
    named = os.environ.get("NEOCLOUD_HOME", "")
    if named and not gpus and not tls and (Path(named) / "server.json").exists():
        with connected(Path(named)) as found:
            yield found
        return
    with tempfile.TemporaryDirectory(prefix="neocloud-emulator-") as folder:
        home = Path(folder)
        with emulator_process(home, gpus, tls), connected(home) as started:
            yield started


@contextmanager
def emulator_process(
    home: Path, gpus: str = "", tls: bool = False, *, options: Sequence[str] = ()
) -> Iterator[None]:
    """A server of its own on this folder; what an earlier one left there is there again. `options` are
    more of its command line."""
    ports = ["--grpc-port", "0", "--http-port", "0"]
    if tls:
        ports += ["--tls-port", "0", "--redirector-port", "0"]
    command = [sys.executable, "-m", "neocloud.control_plane", "--emulator", "--home", str(home), *ports]
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--emulator-gpus", gpus, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
        )
    try:
        _wait_until_ready(home, process)
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(home: Path, process: "subprocess.Popen[bytes]") -> None:
    """The server writes server.json when it is ready. One that was killed leaves its file behind."""
    deadline = time.monotonic() + START_SECONDS
    while _pid_of_server(home) != process.pid:
        if process.poll() is not None or time.monotonic() > deadline:
            log = (home / "server.log").read_text(errors="replace").strip()
            raise RuntimeError(f"The emulator has not started: {log or 'it said nothing'}")
        time.sleep(0.01)


def _pid_of_server(home: Path) -> int | None:
    try:
        return json.loads((home / "server.json").read_text())["pid"]
    except FileNotFoundError:
        return None


@contextmanager
def connected(home: Path) -> Iterator[Emulator]:
    """Return the emulator that runs on this folder."""
    server = json.loads((home / "server.json").read_text())
    with connect_as(read_credentials(home / "credentials.json"), server["grpc"]) as client:
        yield Emulator(
            home=home,
            endpoint=server["grpc"],
            http_endpoint=server["http"],
            tls_endpoint=server["tls"],
            s3_endpoint=f"http://{server['s3']}" if server.get("s3") else "",
            tenant_id=server["tenant_id"],
            project_id=server["project_id"],
            client=client,
        )
