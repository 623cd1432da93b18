"""Start and stop the control plane's process.

It is started in a session of its own, so that closing the terminal or pressing Ctrl-C does not touch it, and
it writes to a log file in its state folder. Its last line of log is what it has to say when it cannot start.
"""

import http.client
import json
import os
import sys
from typing import Any

from neocloud.cli.machine import home as home_module
from neocloud.cli.machine.home import Home, RunningServer
from neocloud.client.errors import ClientError
from neocloud.control_plane import database_url
from neocloud.core.child_process import KILL_SECONDS, Child, Process

START_TIMEOUT_SECONDS = 120.0
STOP_TIMEOUT_SECONDS = 60.0


def start_server(home: Home) -> RunningServer:
    """Start it and wait until it is ready. Interrupted, it leaves nothing running."""
    child = Child("server", home.log_file)
    process = child.start(_command(home), environment=_environment())
    try:
        return _wait_until_ready(home, child)
    except BaseException:
        process.stop(STOP_TIMEOUT_SECONDS)
        raise


def stop_server(home: Home) -> bool:
    """Ask the server to stop and wait until it has; False when none was running."""
    server = home.server()
    if server is None:
        return False
    process = Process.of(server.pid)
    if process is not None and not process.stop(STOP_TIMEOUT_SECONDS):
        raise ClientError(
            "DEADLINE_EXCEEDED",
            f"The server (process {server.pid}) has not ended {KILL_SECONDS:.0f} s after it was killed",
            f"It waits for the kernel, perhaps for a disk; see {home.log_file}",
        )
    return True


def run_server_verb(home: Home, verb: str) -> None:
    """Run the server program for one task that needs the engine but no server: stop or destroy workloads."""
    child = Child("server", home.log_file)
    process = child.start(_command(home, verb), environment=_environment())
    try:
        process.wait(None)
    except BaseException:
        process.stop(STOP_TIMEOUT_SECONDS)
        raise
    if process.exit_code != 0:
        raise ClientError(
            "FAILED_PRECONDITION", _last_line(child.output()), f"The whole log is {home.log_file}"
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


def _last_line(output: str) -> str:
    """Return the last line of a log: the server's own explanation."""
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1].removeprefix("neocloud: ") if lines else "The server exited without any log output"


def _environment() -> dict[str, str]:
    """Return ours, without a database that would take the place of the one that was chosen for the home."""
    return {name: value for name, value in os.environ.items() if name != database_url.VARIABLE}


def _command(home: Home, *arguments: str) -> list[str]:
    return [sys.executable, "-m", home_module.SERVER_MODULE, "--home", str(home.path), *arguments]


def _wait_until_ready(home: Home, child: Child) -> RunningServer:
    assert child.process is not None, "It has been started."
    pid = child.process.pid

    def is_ready() -> bool:
        server = home.server()
        return server is not None and server.pid == pid and _is_ready(server)

    if child.wait_until_ready(is_ready, START_TIMEOUT_SECONDS) and (server := home.server()) is not None:
        return server
    if child.process.wait(0):
        raise ClientError("UNAVAILABLE", _last_line(child.output()))
    raise ClientError(
        "DEADLINE_EXCEEDED",
        f"The server was not ready after {START_TIMEOUT_SECONDS:.0f} s",
        f"Its log {home.log_file} says why",
    )


def _is_ready(server: RunningServer) -> bool:
    answer = get_json(server.http, "/healthz")
    return isinstance(answer, dict) and answer.get("status") == "ready"
