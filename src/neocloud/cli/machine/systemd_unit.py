"""The systemd unit of a cloud: started when its host starts, stopped in order when the host shuts down.

The unit runs `neo up` and `neo down`, so a cloud that was started by hand is the same as one that systemd
started. systemd finds it running when the unit is installed, and changes nothing.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from neocloud.cli.machine.home import Home
from neocloud.client.errors import ClientError
from neocloud.core.osfiles import write_file

UNITS = Path("/etc/systemd/system")
BOOTED = Path("/run/systemd/system")
"""Exists where systemd is process 1: sd_booted(3)."""
DEFAULT_FOLDER = Path("/var/lib/neocloud")
READABLE = 0o644
START_SECONDS, STOP_SECONDS = 3600, 600
"""A start may build images first; a stop waits for pods that end by themselves."""


def unit_file(place: Home) -> Path:
    """Return where the unit of a state folder is, or would be."""
    folder = place.path.absolute()
    if folder == DEFAULT_FOLDER:
        return UNITS / "neocloud.service"
    return UNITS / f"neocloud-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}.service"


def has_unit(place: Home) -> bool:
    return unit_file(place).exists()


def check_systemd() -> None:
    """Raise ClientError where systemd does not start this host's services."""
    if BOOTED.is_dir() and shutil.which("systemctl"):
        return
    raise ClientError(
        "FAILED_PRECONDITION",
        "systemd is not process 1 of this machine, so it cannot start the cloud with the machine",
        "Let what starts programs here run `neo up` without --service",
    )


def install_unit(place: Home) -> Path:
    """Write the unit, enable and start it; return its file. Raises ClientError.

    Call it without the lock of the state folder: the unit runs `neo up`.
    """
    file = unit_file(place)
    _write(file, place)
    _systemctl("enable", "--now", file.name)
    return file


def update_unit(place: Home) -> bool:
    """Let the unit start this release if it starts another one; return whether it did."""
    file = unit_file(place)
    if not BOOTED.is_dir() or not file.exists() or file.read_text() == _content(place):
        return False
    _write(file, place)
    return True


def remove_unit(place: Home, *, stop: bool = False) -> bool:
    """Disable and delete the unit; return whether there was one. With `stop`, it runs `neo down` before."""
    file = unit_file(place)
    if not file.exists():
        return False
    if BOOTED.is_dir():
        _systemctl("disable", *(("--now",) if stop else ()), file.name)
    file.unlink(missing_ok=True)
    if BOOTED.is_dir():
        _systemctl("daemon-reload")
    return True


def _write(file: Path, place: Home) -> None:
    try:
        write_file(file, _content(place), READABLE, durable=True)
    except OSError as error:
        what = f"{file} cannot be written: {error.strerror}"
        raise ClientError("FAILED_PRECONDITION", what, "Run it as root, on a disk with free space") from error
    _systemctl("daemon-reload")


def _content(place: Home) -> str:
    folder = str(place.path.absolute())
    program = " ".join(_argument(each) for each in (sys.executable, "-m", "neocloud.cli.main"))
    home = f"--home {_argument(folder)}"
    return f"""\
# Written by `neo up --service`; `neo up --no-service` and `neo destroy` remove it.
[Unit]
Description=Neocloud in {_plain(folder)}
Wants=network-online.target
After=network-online.target time-sync.target
RequiresMountsFor={_quoted(folder)}

[Service]
Type=oneshot
RemainAfterExit=yes
Environment={_quoted(f"HOME={Path.home()}")}
ExecStart={program} up {home}
ExecStop={program} down {home}
TimeoutStartSec={START_SECONDS}
TimeoutStopSec={STOP_SECONDS}

[Install]
WantedBy=multi-user.target
"""


def _argument(text: str) -> str:
    """Return one word of a command line. Elsewhere in a unit, $ means nothing."""
    return _quoted(text).replace("$", "$$")


def _quoted(text: str) -> str:
    """Return one word of a line, with nothing in it that systemd would take for its own."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped.replace("%", "%%")}"'


def _plain(text: str) -> str:
    return text.replace("\n", " ").replace("%", "%%")


def _systemctl(*arguments: str) -> None:
    command = ["systemctl", *arguments]
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=START_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClientError(
            "UNAVAILABLE", f"`{' '.join(command)}` failed: {error}", "See journalctl"
        ) from error
    if ran.returncode != 0:
        said = ran.stderr.strip().splitlines() or ["it said nothing"]
        raise ClientError(
            "UNAVAILABLE",
            f"`{' '.join(command)}` failed: {said[0]}",
            f"See `systemctl status {arguments[-1]}`",
        )
