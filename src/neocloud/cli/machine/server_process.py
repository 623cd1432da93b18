"""Start and stop the control plane's process.

It is started in a session of its own, so that closing the terminal or pressing Ctrl-C does not touch it, and
it writes to a log file in its state folder. Its last line of log is what it has to say when it cannot start.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from neocloud.cli.machine import home as home_module
from neocloud.cli.machine.home import Home, RunningServer, is_server_process
from neocloud.client.errors import ClientError
from neocloud.control_plane import database_url

START_TIMEOUT_SECONDS = 120.0
STOP_TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.05
LOG_LIMIT_BYTES = 20 * 1024 * 1024


def start_server(home: Home) -> RunningServer:
    """Start it and wait until it is ready. Interrupted, it leaves nothing running."""
    _rotate(home.log_file)
    offset = home.log_file.stat().st_size if home.log_file.exists() else 0
    with _open_log(home) as log:
        process = subprocess.Popen(
            _command(home),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=_environment(),
            start_new_session=True,
        )
    try:
        server = _wait_until_ready(home, process, offset)
    except BaseException:
        process.terminate()
        process.wait(STOP_TIMEOUT_SECONDS)
        raise
    # It is meant to outlive us: without this Python warns that a child was left running.
    process.returncode = 0
    return server


def stop_server(home: Home) -> bool:
    """Ask the server to stop and wait until it has; False when none was running."""
    server = home.server()
    if server is None:
        return False
    os.kill(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
    while is_server_process(server.pid):
        if time.monotonic() > deadline:
            raise ClientError(
                "DEADLINE_EXCEEDED",
                f"The server (process {server.pid}) has not stopped in {STOP_TIMEOUT_SECONDS:.0f} s",
                f"See {home.log_file}; `kill -9 {server.pid}` ends it without losing anything",
            )
        time.sleep(POLL_SECONDS)
    return True


def run_server_verb(home: Home, verb: str) -> None:
    """Run the server program for one task that needs the engine but no server: stop or destroy workloads."""
    offset = home.log_file.stat().st_size if home.log_file.exists() else 0
    home.log_file.parent.mkdir(exist_ok=True, mode=0o700)
    with _open_log(home) as log:
        done = subprocess.run(
            _command(home, verb),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=_environment(),
            check=False,
        )
    if done.returncode != 0:
        raise ClientError(
            "FAILED_PRECONDITION", last_words(home.log_file, offset), f"The whole log is {home.log_file}"
        )


def get_json(address: str, path: str, token: str = "") -> Any:
    """GET a page of the server's JSON side; None when it does not answer with success."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=10)
    try:
        connection.request("GET", path, headers={"authorization": f"Bearer {token}"} if token else {})
        response = connection.getresponse()
        return json.loads(response.read()) if response.status == http.HTTPStatus.OK else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def last_words(log_file: Path, offset: int) -> str:
    """The last line that was written after `offset`: the server's own explanation."""
    with log_file.open("rb") as log:
        log.seek(offset)
        lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("neocloud: ") if lines else "The server exited without any log output"


def _environment() -> dict[str, str]:
    """Return ours, without a database that would take the place of the one that was chosen for the home."""
    return {name: value for name, value in os.environ.items() if name != database_url.VARIABLE}


def _command(home: Home, *arguments: str) -> list[str]:
    return [sys.executable, "-m", home_module.SERVER_MODULE, "--home", str(home.path), *arguments]


def _wait_until_ready(home: Home, process: "subprocess.Popen[bytes]", offset: int) -> RunningServer:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while True:
        server = home.server()
        if server is not None and server.pid == process.pid and _is_ready(server):
            return server
        if process.poll() is not None:
            raise ClientError("UNAVAILABLE", last_words(home.log_file, offset))
        if time.monotonic() > deadline:
            raise ClientError(
                "DEADLINE_EXCEEDED",
                f"The server was not ready after {START_TIMEOUT_SECONDS:.0f} s",
                f"Its log {home.log_file} says why",
            )
        time.sleep(POLL_SECONDS)


def _is_ready(server: RunningServer) -> bool:
    answer = get_json(server.http, "/healthz")
    return isinstance(answer, dict) and answer.get("status") == "ready"


def _open_log(home: Home) -> IO[bytes]:
    return os.fdopen(os.open(home.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


def _rotate(log_file: Path) -> None:
    if log_file.exists() and log_file.stat().st_size > LOG_LIMIT_BYTES:
        log_file.replace(log_file.with_suffix(".log.1"))
