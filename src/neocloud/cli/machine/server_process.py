"""Start and stop the control plane's process, and the supervisor that starts it again when it dies.

Both have sessions of their own, so that closing the terminal or pressing Ctrl-C does not touch them, and
write to log files in the state folder. The server's last line of log says why it cannot start.
`check_machine` checks early what this machine lacks, so that errors come before work.
"""

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote

import neocloud
from neocloud.cli.machine import home as home_module
from neocloud.cli.machine.home import Home, RunningServer
from neocloud.cli.machine.stops import note_stop
from neocloud.client.errors import ClientError
from neocloud.control_plane.server_supervisor import (
    server_child,
    successor_child,
    supervisor_child,
    supervisor_command,
)
from neocloud.control_plane.settings_file import DATABASE_URL_VARIABLE
from neocloud.core.child_process import POLL_SECONDS, Child, Deaths, deaths_in
from neocloud.core.json_values import as_object
from neocloud.core.process import KILL_SECONDS, Process

OLDEST_PODMAN = (4, 3)
TOOLS = {
    "podman": "podman",
    "runc": "runc",
    "catatonit": "catatonit",
    "netavark": "netavark",
    "nft": "nftables",
}
"""Programs without which no container runs, and their packages. The installer's list is longer."""
_TOOL_FOLDERS = "/usr/sbin:/sbin:/usr/libexec/podman:/usr/lib/podman:/usr/local/libexec/podman"
_PACKAGE = Path(neocloud.__file__).parent
START_TIMEOUT_SECONDS = 120.0
STOP_TIMEOUT_SECONDS = 60.0
TAKE_OVER_SECONDS = 5.0
"""How long the successor of a supervisor that has died may take to say that it is the supervisor."""


def check_machine() -> None:
    """Raises ClientError that says what is missing and how to get it."""
    if os.geteuid() != 0:
        raise ClientError(
            "PERMISSION_DENIED",
            "Running containers takes root, for networks and mounts, and you are not root",
            "Run it as root, for example with sudo",
        )
    folders = f"{os.environ.get('PATH', os.defpath)}:{_TOOL_FOLDERS}"
    missing = [tool for tool in TOOLS if shutil.which(tool, path=folders) is None]
    if missing:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
            _how_to_install(*(TOOLS[tool] for tool in missing)),
        )
    _check_podman_version()


def _how_to_install(*packages: str) -> str:
    """Return the command for all that Neocloud needs, which is inside an installed package, too."""
    scripts = (folder / "scripts" / "install-debian-packages" for folder in (_PACKAGE, _PACKAGE.parents[1]))
    installer = next((script for script in scripts if script.is_file()), None)
    only = f"`apt-get install {' '.join(packages)}`"
    if installer is None:
        return f"Install with {only}"
    return (
        f"Install all that Neocloud needs with `bash {quote(str(installer))} run`, or only this with {only}"
    )


def _check_podman_version() -> None:
    answer = subprocess.run(["podman", "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"(\d+)\.(\d+)", answer.stdout)
    oldest = ".".join(map(str, OLDEST_PODMAN))
    if found is None:
        said = answer.stderr.strip() or answer.stdout.strip() or "nothing"
        raise ClientError(
            "FAILED_PRECONDITION",
            f"`podman --version` does not say its version; it says: {said}",
            _how_to_install("podman"),
        )
    if (int(found[1]), int(found[2])) < OLDEST_PODMAN:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"Podman {found[0]} is too old: {oldest} or newer is needed",
            "Upgrade it; Debian 12 and newer have one that is new enough",
        )


def start_server(
    home: Home, command: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> RunningServer:
    """Start the server under a supervisor, or join the one that is starting it; wait until it is ready.

    `command` starts the supervisor of another release, in an environment of its own; by default, ours starts.
    Interrupted, or if the server does not start, it leaves nothing running that it has started.
    """
    supervisor = supervisor_child(home.path)
    running = _find_supervisor(home)
    if running is not None:
        # One more death may be that which the supervisor has not noticed yet.
        deaths_allowed = deaths_of_server(home).restarts + 1
        supervisor.adopt(running)
        running.send(signal.SIGHUP)
        return _wait_until_ready(home, supervisor, deaths_allowed)
    deaths_allowed = _start_supervisor(home, supervisor, command, environment)
    try:
        return _wait_until_ready(home, supervisor, deaths_allowed)
    except BaseException:
        stop_server(home)
        raise


def keep_supervised(home: Home) -> bool:
    """Start another supervisor where that of a running server has died, and its successor; return whether.

    A server that was not started by `neo up` has none, and gets none.
    """
    if _find_supervisor(home) is not None or server_child(home.path).find() is None:
        return False
    _start_supervisor(home, supervisor_child(home.path))
    return True


def is_supervised(home: Home) -> bool:
    return _find_supervisor(home) is not None


def _find_supervisor(home: Home) -> Process | None:
    """Return the running supervisor; wait for a successor that is taking its place."""
    until = time.monotonic() + TAKE_OVER_SECONDS
    while (found := supervisor_child(home.path).find()) is None:
        if successor_child(home.path).find() is None or time.monotonic() > until:
            return None
        time.sleep(POLL_SECONDS)
    return found


def deaths_of_server(home: Home) -> Deaths:
    """Return how often the server died since `neo up`, and why the last time."""
    return deaths_in(server_child(home.path).record())


def stop_server(home: Home) -> bool:
    """Stop the supervisor and the server, and wait for their end; False when neither was running."""
    supervisor = None
    while (found := _find_supervisor(home)) is not None:  # another one where this was killed meanwhile
        supervisor = found
        _stop(home, supervisor, 2 * STOP_TIMEOUT_SECONDS)
    announced = home.server()
    left = [server_child(home.path).find(), Process.of(announced.pid) if announced else None]
    for process in left:
        if process is not None:
            _stop(home, process, STOP_TIMEOUT_SECONDS)
    for child in (supervisor_child(home.path), successor_child(home.path), server_child(home.path)):
        if child.record_file is not None:
            child.record_file.unlink(missing_ok=True)
    was_running = supervisor is not None or any(left)
    if was_running:
        note_stop(home)
    return was_running


def own_supervisor_command(home: Home) -> list[str]:
    """Return how this release starts the server's supervisor."""
    return supervisor_command(home.path, _command(home))


def _start_supervisor(
    home: Home, supervisor: Child, command: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> int:
    """Return after how many deaths of the server it still starts: one more if there is one to adopt."""
    server = server_child(home.path)
    is_adopted = server.find() is not None
    if not is_adopted and server.record_file is not None:
        server.record_file.unlink(missing_ok=True)  # of an earlier life of the cloud
    deaths_allowed = deaths_of_server(home).restarts + is_adopted
    supervisor.start(command or own_supervisor_command(home), environment=environment or _environment())
    return deaths_allowed


def _stop(home: Home, process: Process, grace_seconds: float) -> None:
    if not process.stop(grace_seconds):
        raise ClientError(
            "DEADLINE_EXCEEDED",
            f"Process {process.pid} has not ended {KILL_SECONDS:.0f} s after it was killed",
            f"It waits for the kernel, perhaps for a disk; see {home.log_file}",
        )


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


def get_json(address: str, path: str, token: str = "") -> object:
    """GET a page of the server's JSON side; None when it does not answer with success."""
    text = get_text(address, path, token)
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return None


def get_text(address: str, path: str, token: str = "") -> str | None:
    """GET a page of a process of this cloud over HTTP; None when it does not answer with success."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=10)
    try:
        connection.request("GET", path, headers={"authorization": f"Bearer {token}"} if token else {})
        response = connection.getresponse()
        return response.read().decode() if response.status == http.HTTPStatus.OK else None
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
    return {name: value for name, value in os.environ.items() if name != DATABASE_URL_VARIABLE}


def _command(home: Home, *arguments: str) -> list[str]:
    return [sys.executable, "-m", home_module.SERVER_MODULE, "--home", str(home.path), *arguments]


def _wait_until_ready(home: Home, supervisor: Child, deaths_allowed: int) -> RunningServer:
    """`deaths_allowed`: more deaths of the server since `neo up` mean that it does not start."""

    def is_over() -> bool:
        server = home.server()
        has_died = deaths_of_server(home).restarts > deaths_allowed
        return has_died or (server is not None and _is_ready(server))

    is_late = not supervisor.wait_until_ready(is_over, START_TIMEOUT_SECONDS)
    deaths = deaths_of_server(home)
    if deaths.restarts > deaths_allowed:
        said = deaths.said.removeprefix("neocloud: ")
        raise ClientError("UNAVAILABLE", said or f"The server {deaths.why}; its log is {home.log_file}")
    server = home.server()
    if server is not None and _is_ready(server):
        return server
    assert supervisor.process is not None, "It has been started."
    if supervisor.process.wait(0):
        raise ClientError("UNAVAILABLE", f"The server's supervisor has ended; see {supervisor.log_file}")
    raise ClientError(
        "DEADLINE_EXCEEDED" if is_late else "UNAVAILABLE",
        f"The server was not ready after {START_TIMEOUT_SECONDS:.0f} s",
        f"Its log {home.log_file} says why",
    )


def _is_ready(server: RunningServer) -> bool:
    answer = get_json(server.http, "/healthz")
    return as_object(answer).get("status") == "ready"
