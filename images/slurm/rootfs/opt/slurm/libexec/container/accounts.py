"""Names of users and groups in a container: an image does not know those of the cluster."""

import contextlib
import grp
import os
import pwd
from pathlib import Path

from files import ContainerError, read_small, say

MOST_ACCOUNTS = 1 << 20
MOST_LINKS = 8


def add_user(image: Path, upper: Path) -> None:
    """Let the container know the names of the user and of the user's groups."""
    if (image / "etc").is_symlink():
        return say("the container does not know your name: /etc of its image is a link")
    try:
        user = pwd.getpwuid(os.getuid())
    except KeyError:
        return None
    line = f"{user.pw_name}:x:{user.pw_uid}:{user.pw_gid}::{user.pw_dir}:/bin/sh"
    _add_names(image, upper, "passwd", {user.pw_uid: line, 0: "root:x:0:0:root:/root:/bin/sh"})
    groups = {number: _group_line(number) for number in (user.pw_gid, *os.getgroups(), 0)}
    return _add_names(image, upper, "group", {number: line for number, line in groups.items() if line})


def _group_line(number: int) -> str:
    try:
        return f"{grp.getgrgid(number).gr_name}:x:{number}:"
    except KeyError:
        return ""


def _add_names(image: Path, upper: Path, name: str, lines: dict[int, str]) -> None:
    """Put a file over /etc/NAME of the image, or over a link there, that has lines for these numbers, too."""
    known = _read_in(image, f"/etc/{name}")
    numbers = {fields[2] for line in known.splitlines() if len(fields := line.split(b":")) > 2}
    missing = [os.fsencode(line) for number, line in lines.items() if str(number).encode() not in numbers]
    if not missing:
        return
    (upper / "etc").mkdir(0o755, exist_ok=True)
    begin = [known.rstrip(b"\n")] if known.strip() else []
    (upper / "etc" / name).write_bytes(b"\n".join([*begin, *missing]) + b"\n")


def _read_in(image: Path, path: str) -> bytes:
    """Return what a file of an image holds, b"" where there is none. No link leads out of the image."""
    root = image.resolve()
    with contextlib.suppress(OSError, ContainerError):
        for _ in range(MOST_LINKS):
            place = Path(f"{root}{path}")
            if not place.parent.resolve().is_relative_to(root):
                break
            if not place.is_symlink():
                return read_small(place, MOST_ACCOUNTS)
            path = os.path.normpath(os.path.join("/", os.path.dirname(path), os.readlink(place)))
    return b""
