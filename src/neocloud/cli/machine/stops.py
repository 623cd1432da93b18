"""Since when a cloud is stopped, and on whose request; or that it died.

Each command that stops the server leaves a note. A server that was ended by a signal has noted that itself;
where nothing is noted, it died together with its supervisor, or with its machine.
"""

import json
import os
import pwd
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path

from neocloud.cli.machine.home import Home
from neocloud.control_plane.server_supervisor import ended_file, server_child
from neocloud.core.child_process import boot_id
from neocloud.core.json_values import as_object
from neocloud.core.osfiles import write_file

LONGEST_TEXT = 200
"""Longest note that is read back."""


@dataclass(frozen=True)
class Stop:
    """The end of the last life of a cloud."""

    at: float = 0.0
    """In seconds since 1970; of a death, when the last line was written to the log. 0: it is not known."""
    by: str = ""
    """The account on whose request it was stopped; "" if it was not stopped by `neo`."""
    command: str = ""
    why: str = ""
    """Why it ended, if it was not stopped by `neo`."""
    is_known: bool = True
    """Whether it ended then; False: that is when it was last seen alive."""

    @property
    def time(self) -> str:
        return f"{datetime.fromtimestamp(self.at, UTC):%Y-%m-%d %H:%M:%S} UTC" if self.at else "unknown"

    def document(self) -> dict[str, str]:
        at = datetime.fromtimestamp(self.at, UTC).isoformat() if self.at else ""
        return {"at": at, "by": self.by, "command": self.command, "why": self.why}


def note_stop(home: Home) -> None:
    """Note that the command that runs now has stopped the server. A full disk must not keep it from that."""
    # The words before the options, which may hold a password.
    words = takewhile(lambda word: not word.startswith("-"), sys.argv[1:])
    stop = Stop(datetime.now(UTC).timestamp(), _who(), " ".join([Path(sys.argv[0]).name, *words]))
    try:
        write_file(_note_file(home), json.dumps(stop.document() | {"at": stop.at}))
    except OSError:
        _note_file(home).unlink(missing_ok=True)  # better none than that of an earlier stop


def last_stop(home: Home) -> Stop | None:
    """Return how the cloud came to be stopped; None if it has never run, or an earlier release stopped it."""
    server = server_child(home.path).record()
    if not server:  # it is removed when the server is stopped
        return _noted(home)
    note = _read(ended_file(home.path))
    if note and note == {name: server.get(name) for name in ("pid", "began")}:
        why = f"a signal ended its process ({server.get('pid')}); its workloads may still run"
        return Stop(_changed_at(ended_file(home.path)), why=why)
    is_same_boot = server.get("boot", boot_id()) == boot_id()
    why = "it died, and so did its supervisor" if is_same_boot else "its machine was shut down or restarted"
    return Stop(_changed_at(home.log_file), why=why, is_known=False)


def _noted(home: Home) -> Stop | None:
    note = _read(_note_file(home))
    try:
        at = float(str(note["at"]))
        datetime.fromtimestamp(at, UTC)  # which must be a time
        return Stop(at, str(note["by"])[:LONGEST_TEXT], str(note["command"])[:LONGEST_TEXT])
    except (KeyError, ValueError, OverflowError, OSError):
        return None


def _note_file(home: Home) -> Path:
    return home.path / "stopped.json"


def _read(file: Path) -> dict[str, object]:
    try:
        document: object = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return as_object(document)


def _changed_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _who() -> str:
    """Return the account that runs this command, and the one that became it with sudo."""
    try:
        account = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # an account without a name, as in some containers
        account = f"uid {os.getuid()}"
    person = os.environ.get("SUDO_USER", "")
    if person and person != account:
        return f"{person} (as {account})"
    is_unit = "INVOCATION_ID" in os.environ and "TERM" not in os.environ
    return f"systemd (as {account})" if is_unit else account
