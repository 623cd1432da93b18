"""Read what a job printed, with the rights of the job's user.

The path is the user's own choice, and others get the content. So the program that reads it becomes that user
first: what the user may not read does not come back, whatever the path leads to. The file is opened without
following a link, and must be the user's. For root of the cluster, which may read everything, no folder of the
path may be a link either.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from neocloud.services.slurm.slurm_records import SlurmJob
from neocloud.services.slurm.types import UNKNOWN_USER_ID, ClusterUnreachable, CommandResult

NO_SUCH_FILE, REFUSED = 66, 67
LONGEST_REASON = 300

_USER = re.compile(r"[a-z_][a-z0-9_.-]{0,63}\$?", re.IGNORECASE)
_POSITION = re.compile(rb"([0-9]{1,18}) ([0-9]{1,18})")

PROGRAM = """
import os, stat, sys

path, offset, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
me = os.geteuid()

def refuse(why):
    sys.stderr.write(why)
    sys.exit(67)

def opened():
    last = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    if me:
        return os.open(path, last)
    *folders, name = [each for each in path.split("/") if each]
    folder = os.open("/", os.O_PATH | os.O_DIRECTORY)
    for each in folders:
        above, folder = folder, os.open(each, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        os.close(above)
    return os.open(name, last, dir_fd=folder)

if not path.startswith("/") or ".." in path.split("/") or path.endswith("/"):
    refuse("its path is not that of a file")
try:
    file = opened()
except (FileNotFoundError, NotADirectoryError):
    sys.exit(refuse("a part of its path is a link, or no folder") if os.path.lexists(path) else 66)
except OSError as error:
    refuse("it is a link" if os.path.islink(path) else "it cannot be opened: " + (error.strerror or ""))
found = os.fstat(file)
if not stat.S_ISREG(found.st_mode):
    refuse("it is not a plain file")
if found.st_uid != me:
    refuse("it is a file of another user")
if offset < 0:
    offset = max(0, found.st_size + offset)
os.lseek(file, offset, os.SEEK_SET)
sys.stdout.buffer.write(b"%d %d\\n" % (found.st_size, offset))
while count and (piece := os.read(file, min(count, 65536))):
    sys.stdout.buffer.write(piece)
    count -= len(piece)
"""

_AS_USER = """
user=$1 number=$2 program=$3; shift 3
uid=$(id -u -- "$user") && gid=$(id -g -- "$user") || exit 67
[ "$number" = "-1" ] || [ "$number" = "$uid" ] || { echo "$user has another number now" >&2; exit 67; }
exec setpriv --reuid="$uid" --regid="$gid" --init-groups --no-new-privs --reset-env \\
    python3 -I -S -c "$program" "$@"
"""
"""The shell is the tenant's root, who alone can become another user; it touches nothing of the path."""


class OutputRefused(Exception):
    """The output of a job is not read; the message says why."""


@dataclass(frozen=True)
class Piece:
    size: int
    """Size of the whole file."""
    offset: int
    data: bytes


class LoginNode(Protocol):
    async def run(
        self, cluster_id: str, command: Sequence[str], *, max_output_bytes: int = ...
    ) -> CommandResult: ...


def read_command(user: str, user_id: int, path: str, offset: int, count: int) -> list[str]:
    """Return the command that reads a file as a user of the cluster, to be run there as root."""
    arguments = [user, str(user_id), PROGRAM, path, str(offset), str(count)]
    return ["/bin/sh", "-c", _AS_USER, "read-output", *arguments]


async def read_output(
    login: LoginNode, cluster_id: str, job: SlurmJob, offset: int, count: int
) -> Piece | None:
    """Return a piece of the output of a job; None when there is no file. A negative offset counts from the
    end. Raises OutputRefused, and ClusterUnreachable."""
    if not _USER.fullmatch(job.user):
        raise OutputRefused(f"job {job.id} is of a user whose name cannot be used")
    if not job.output_path:
        return None
    number = job.user_id if job.user_id >= 0 else UNKNOWN_USER_ID
    command = read_command(job.user, number, job.output_path, offset, count)
    result = await login.run(cluster_id, command, max_output_bytes=count + 4096)
    if result.exit_code == NO_SUCH_FILE:
        return None
    if result.exit_code == REFUSED:
        text = "".join(each for each in result.stderr.decode(errors="replace").strip() if each.isprintable())
        raise OutputRefused(text[-LONGEST_REASON:] or "it cannot be read")
    header, _, data = result.stdout.partition(b"\n")
    position = _POSITION.fullmatch(header)
    if result.exit_code or position is None or len(data) > count:
        raise ClusterUnreachable(f"the login node did not read the output of job {job.id}")
    return Piece(int(position[1]), int(position[2]), data)
