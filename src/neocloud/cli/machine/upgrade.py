"""Upgrade a running cloud in place: start this release on its state, or start the one before it again.

Workloads run on meanwhile. A release does not open the database of a newer one, so the database is copied
before, and the copy is removed when the server is ready. A copy that an interruption left, such as a power
cut, is restored by the next `neo up` of the release that it belongs to, and removed by that of another.
"""

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from neocloud import __version__
from neocloud.cli.machine.home import Home, RunningServer
from neocloud.cli.machine.server_process import own_supervisor_command, start_server, stop_server
from neocloud.cli.output import say
from neocloud.cli.progress import stage
from neocloud.client.errors import ClientError
from neocloud.control_plane.prepared_server import PREPARED
from neocloud.control_plane.server_supervisor import (
    server_child,
    supervisor_child,
    supervisor_command,
    without_role,
)

_VERSION_TIMEOUT_SECONDS = 30.0
_PRINT_VERSION = "import neocloud; print(neocloud.__version__)"


@dataclass(frozen=True)
class _Release:
    """A release as it runs: how to start it again."""

    version: str
    command: tuple[str, ...]
    """Command of the supervisor; empty where there is none."""
    environment: dict[str, str]

    def is_installed(self) -> bool:
        """Return whether the command still starts this release; an installation may have replaced it."""
        if not self.command:
            return False
        try:
            answer = subprocess.run(
                [self.command[0], "-c", _PRINT_VERSION],
                env=self.environment,
                cwd="/",
                capture_output=True,
                text=True,
                timeout=_VERSION_TIMEOUT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return answer.stdout.strip() == self.version


def upgrade(place: Home, server: RunningServer) -> RunningServer:
    """Replace the running server of another release by one of this release; return it.

    Raises ClientError when it does not start. Then, and when it is interrupted, the database is as before,
    and the release before runs again if it is still installed.
    """
    before = _running_release(place, server)
    remove_copies(place)  # of an earlier upgrade: none may be taken for this one's
    try:
        with stage(f"Stop the server of release {before.version}"):
            stop_server(place)
        with stage("Copy the database"):
            _copy_database(place, before.version)
        with stage(f"Start the server of release {__version__}"):
            started = start_server(place)
    except BaseException as error:
        outcome = _go_back(place, before)
        if isinstance(error, ClientError):
            raise ClientError(error.code, f"{error.message}. {outcome}", error.next_step) from error
        if isinstance(error, OSError | sqlite3.Error):
            raise ClientError(
                "FAILED_PRECONDITION", f"The database cannot be copied: {error}. {outcome}", "Free some space"
            ) from error
        say(f"The upgrade was interrupted. {outcome}.")
        raise
    remove_copies(place)
    return started


def prepare_start(place: Home) -> bool:
    """Stop a release that only tries to start, and restore this one's database if an upgrade was cut off.

    Returns whether the database was restored. Raises ClientError.
    """
    supervisor = supervisor_child(place.path).find()
    is_other = supervisor is not None and not _runs_this_release(place, supervisor.pid)
    copy = _copy_file(place, __version__)
    if is_other or copy.exists():
        stop_server(place)
    if not copy.exists() or _revision(copy) == _revision(place.settings().database):
        return False
    try:
        return _restore_database(place, __version__)
    except (OSError, sqlite3.Error) as error:
        what = f"The database of before the upgrade cannot be restored: {error}; it is {copy}"
        raise ClientError("FAILED_PRECONDITION", what, "Free some space, then repeat this command") from error


def remove_copies(place: Home) -> None:
    shutil.rmtree(_folder(place), ignore_errors=True)


def _running_release(place: Home, server: RunningServer) -> _Release:
    """Return the release that runs. Raises ClientError when `neo up` did not start it."""
    supervisor, child = supervisor_child(place.path).find(), server_child(place.path).find()
    if supervisor is None and child is None:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"Release {server.version} runs in {place.path}, and another program than `neo up` started it",
            f"Stop it (`kill {server.pid}`; workloads of the cloud keep running), then repeat this command",
        )
    if supervisor is not None:
        pid, command = supervisor.pid, without_role(_command_of(supervisor.pid))
    else:  # its supervisor has died
        pid, command = server.pid, [word for word in _command_of(server.pid) if word != PREPARED]
        command = [*command[:1], *supervisor_command(place.path, command)[1:]] if command else []
    return _Release(server.version, tuple(command), _environment_of(pid))


def _runs_this_release(place: Home, supervisor_pid: int) -> bool:
    """Return whether the supervisor starts the program, and from the folders, that this process would."""
    path = _environment_of(supervisor_pid).get("PYTHONPATH")
    is_same = without_role(_command_of(supervisor_pid)) == own_supervisor_command(place)
    return is_same and path == os.environ.get("PYTHONPATH")


def _command_of(pid: int) -> list[str]:
    """Return the words of a process's command line; none when it has ended."""
    return _strings(Path(f"/proc/{pid}/cmdline"))


def _environment_of(pid: int) -> dict[str, str]:
    pairs = (each.partition("=") for each in _strings(Path(f"/proc/{pid}/environ")))
    return {name: value for name, _, value in pairs}


def _strings(file: Path) -> list[str]:
    try:
        return [os.fsdecode(each) for each in file.read_bytes().split(b"\0") if each]
    except OSError:
        return []


def _go_back(place: Home, release: _Release) -> str:
    """Return what was done, to follow the reason in a message."""
    state = f"The database is that of release {release.version}, as it was"
    try:
        stop_server(place)
        if not _restore_database(place, release.version):
            state = "The database was not copied"
    except (ClientError, OSError, sqlite3.Error) as error:
        copy = _copy_file(place, release.version)
        where = f"; its database is {copy}" if copy.is_file() else ""
        return f"Release {release.version} was not started again: {error}{where}"
    if not release.is_installed():
        remove_copies(place)
        return (
            f"{state}; release {release.version} is not installed any more where it ran, so no server"
            " runs: install it again, or remove the reason, then repeat `neo up`"
        )
    try:
        with stage(f"Start the server of release {release.version} again"):
            start_server(place, release.command, release.environment)
    except ClientError as error:
        return f"{state}, but its server did not start again: {error.message}"
    remove_copies(place)
    return f"{state}, and its server runs again"


def _folder(place: Home) -> Path:
    return place.path / "upgrade"


def _copy_file(place: Home, version: str) -> Path:
    return _folder(place) / f"{version}.db"


def _copy_database(place: Home, version: str) -> None:
    """Copy an SQLite database; one of PostgreSQL is left to its own tools."""
    settings = place.settings()
    if settings.database_url_file or not Path(settings.database).is_file():
        return
    database = settings.database
    copy = _copy_file(place, version)
    part = copy.with_suffix(".part")
    copy.parent.mkdir(mode=0o700)
    _copy(database, part)
    part.rename(copy)


def _restore_database(place: Home, version: str) -> bool:
    """Return whether the database is the copy; False where there is none."""
    copy = _copy_file(place, version)
    if not copy.is_file():
        return False
    _copy(copy, place.settings().database)
    return True


def _copy(source: Path | str, destination: Path | str) -> None:
    """Replace the content of a database by that of another, in one transaction, synced to the disk."""
    with closing(sqlite3.connect(source)) as origin, closing(sqlite3.connect(destination)) as target:
        origin.backup(target)


def _revision(database: Path | str) -> str | None:
    with suppress(sqlite3.Error), closing(sqlite3.connect(database)) as connection:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        return str(row[0]) if row else None
    return None
