"""The output of a job is read with the rights of its user, whatever path the user chose (H2 of the second
security review). The program is really run, by a root who becomes the user."""

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from neocloud.services.slurm.batch_jobs import TAIL_BYTES, ClusterJobs
from neocloud.services.slurm.job_output import (
    NO_SUCH_FILE,
    REFUSED,
    OutputRefused,
    Piece,
    read_command,
    read_output,
)
from neocloud.services.slurm.slurm_records import SlurmJob, finished_job_of, job_of
from neocloud.services.slurm.types import (
    CONTROL_PLANE_USER,
    UNKNOWN_USER_ID,
    ClusterUnreachable,
    CommandResult,
    PrintedText,
)

USER, UID = "nobody", 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody may enter, and the user may write to."""
    with tempfile.TemporaryDirectory(prefix="job-output-") as made:
        os.chmod(made, 0o755)
        home = Path(made) / "home"
        home.mkdir()
        os.chown(home, UID, UID)
        secret = Path(made) / "secret"
        secret.write_text("the secret of another user")
        secret.chmod(0o600)
        yield Path(made)


def read(path: Path | str, user: str = USER, number: int = UID, offset: int = 0) -> CommandResult:
    done = subprocess.run(
        read_command(user, number, str(path), offset, 100), capture_output=True, check=False
    )
    return CommandResult(done.returncode, done.stdout, done.stderr)


def owned(path: Path, text: str = "step 1\nstep 2\n") -> Path:
    path.write_text(text)
    os.chown(path, UID, UID)
    return path


def test_the_users_own_file_is_read_from_any_offset(folder: Path) -> None:
    log = owned(folder / "home" / "out.log")
    assert read(log).stdout == b"14 0\nstep 1\nstep 2\n"
    assert read(log, offset=7).stdout == b"14 7\nstep 2\n"
    assert read(log, offset=-3).stdout == b"14 11\n 2\n"
    assert read(log, offset=-1000).stdout == b"14 0\nstep 1\nstep 2\n"
    assert read(log, offset=99).stdout == b"14 99\n"
    (folder / "home" / "folder").symlink_to(folder / "home")  # as users arrange their own folders
    assert read(folder / "home" / "folder" / "out.log").exit_code == 0


@pytest.mark.parametrize("how", ["path", "link", "hard link", "folder", "fifo", "device", "dots", "relative"])
def test_what_is_not_the_users_is_refused(folder: Path, how: str) -> None:
    path: Path | str = folder / "home" / "out.log"
    if how == "path":
        path = folder / "secret"
    elif how == "link":
        Path(path).symlink_to(folder / "secret")
    elif how == "hard link":
        os.link(folder / "secret", path)
    elif how == "folder":
        (folder / "home" / "below").symlink_to(folder)
        path = folder / "home" / "below" / "secret"
    elif how == "fifo":
        os.mkfifo(path)
        os.chown(path, UID, UID)
    elif how == "device":
        path = "/dev/null"
    elif how == "dots":
        path = f"{folder}/home/../secret"
    else:
        path = "secret"
    found = read(path)
    assert (found.exit_code, found.stdout) == (REFUSED, b"") and found.stderr


def test_a_world_readable_file_of_root_is_refused_too(folder: Path) -> None:
    assert read("/etc/passwd").exit_code == REFUSED


def test_for_root_no_part_of_the_path_may_be_a_link(folder: Path) -> None:
    (folder / "out.log").write_text("of root")
    assert read(folder / "out.log", "root", 0).stdout == b"7 0\nof root"
    (folder / "home" / "below").symlink_to(folder)
    (folder / "home" / "link.log").symlink_to(folder / "secret")
    owned(folder / "home" / "planted.log")
    for path in ("home/below/secret", "home/link.log", "home/planted.log", "home/below/../secret"):
        assert read(folder / path, "root", 0).exit_code == REFUSED, path


def test_nothing_there_is_no_refusal(folder: Path) -> None:
    assert read(folder / "home" / "none.log").exit_code == NO_SUCH_FILE
    assert read(folder / "none" / "none.log", "root", 0).exit_code == NO_SUCH_FILE


def test_a_name_that_another_user_has_now_is_refused(folder: Path) -> None:
    log = owned(folder / "home" / "out.log")
    assert read(log, number=UID - 1).exit_code == REFUSED
    assert read(log, user="no-such-user", number=UNKNOWN_USER_ID).exit_code == REFUSED
    assert (
        read(log, number=UNKNOWN_USER_ID).exit_code == 0
    )  # of the accounting database, which has no numbers


def test_the_reader_has_no_right_of_root_left(folder: Path) -> None:
    script = read_command(USER, UID, "", 0, 0)
    script[script.index("read-output") + 3] = "print(open('/proc/self/status').read())"
    status = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert f"Uid:\t{UID}\t{UID}\t{UID}\t{UID}" in status and "NoNewPrivs:\t1" in status
    assert "CapEff:\t0000000000000000" in status
    assert stat.S_IMODE((folder / "secret").stat().st_mode) == 0o600


class Login:
    """A login node that answers what a test says."""

    def __init__(self, answer: CommandResult) -> None:
        self.answer = answer
        self.commands: list[Sequence[str]] = []

    async def run(
        self, cluster_id: str, command: Sequence[str], *, max_output_bytes: int = 0
    ) -> CommandResult:
        self.commands.append(command)
        return self.answer


class OwnJob(ClusterJobs):
    """The jobs of a cluster with one job of the control plane, whose output the test writes."""

    def __init__(self, user: str = CONTROL_PLANE_USER) -> None:
        self.content, self.state, self._user = b"", "RUNNING", user

    async def find(self, cluster_id: str, job_id: int) -> SlurmJob | None:
        return job_of({**ROW, "user_name": self._user, "job_state": [self.state]}) if job_id == 7 else None

    async def run(self, cluster_id: str, command: Sequence[str], **options: int) -> CommandResult:
        offset, count = int(command[-2]), int(command[-1])
        offset = max(0, len(self.content) + offset) if offset < 0 else offset
        header = b"%d %d\n" % (len(self.content), offset)
        return CommandResult(0, header + self.content[offset : offset + count], b"")


async def test_the_output_of_an_own_job_is_followed_by_whole_lines() -> None:
    jobs = OwnJob()
    jobs.content = b"one\ntwo\n"
    assert await jobs.tail("lab", 7, 1) == PrintedText("two\n", 8)
    jobs.content += b"three\nfo"
    assert await jobs.printed("lab", 7, 8) == PrintedText("three\n", 14)
    assert await jobs.printed("lab", 7, 14) == PrintedText("", 14)
    jobs.state = "COMPLETED"
    assert await jobs.printed("lab", 7, 14) == PrintedText("fo", 16)
    jobs.content = b"again\n"
    assert await jobs.printed("lab", 7, 16) == PrintedText("again\n", 6)
    jobs.content = b""
    assert await jobs.printed("lab", 7, 6) == PrintedText("", 6)
    jobs.content, jobs.state = b"\xff" * (TAIL_BYTES + 5), "RUNNING"
    assert (await jobs.printed("lab", 7, 0)).next_offset == TAIL_BYTES, "a line may be longer than a part"


async def test_the_output_of_a_job_of_another_user_is_not_read() -> None:
    others = OwnJob(USER)
    others.content = b"theirs\n"
    assert await others.tail("lab", 7, 9) == PrintedText()
    assert await others.printed("lab", 7, 3) == PrintedText("", 3)
    assert await others.printed("lab", 8, 3) == PrintedText("", 3)


ROW = {
    "job_id": 7,
    "user_name": USER,
    "user_id": UID,
    "job_state": ["RUNNING"],
    "stdout_expanded": "/home/nobody/7.log",
}


async def test_the_job_says_who_reads_and_what(folder: Path) -> None:
    login = Login(CommandResult(0, b"20 5\nhello", b""))
    piece = await read_output(login, "slurmcluster-e00lab", job_of(ROW), 5, 100)
    assert piece == Piece(20, 5, b"hello")
    (command,) = login.commands
    assert command[4:6] == [USER, str(UID)] and command[7:] == ["/home/nobody/7.log", "5", "100"]
    finished = finished_job_of({"job_id": 7, "user": USER, "stdout_expanded": "/home/nobody/7.log"})
    await read_output(login, "slurmcluster-e00lab", finished, 0, 100)
    assert login.commands[1][4:6] == [USER, "-1"]


@pytest.mark.parametrize("user", ["", "-x", "a b", "$(id)", "root\n", "é"])
async def test_no_command_runs_for_a_user_without_a_usable_name(user: str) -> None:
    login = Login(CommandResult(0, b"0 0\n", b""))
    with pytest.raises(OutputRefused):
        await read_output(login, "lab", replace(job_of(ROW), user=user), 0, 100)
    assert not login.commands


@pytest.mark.parametrize(
    "stdout", [b"", b"x", b"1 2 3\n", b"-1 0\n", b"99999999999999999999 0\n", b"1 0\n" + b"x" * 101]
)
async def test_an_answer_of_another_form_is_none(stdout: bytes) -> None:
    """The tenant's root may have replaced the programs of the login node."""
    with pytest.raises(ClusterUnreachable):
        await read_output(Login(CommandResult(0, stdout, b"")), "lab", job_of(ROW), 0, 100)


@pytest.mark.parametrize("value", [None, "0", True, {"set": False, "number": 0}, {}, -1, 0.0, [0]])
def test_only_a_number_makes_a_job_roots(value: object) -> None:
    assert job_of({**ROW, "user_id": value}).user_id == UNKNOWN_USER_ID


def test_both_forms_of_a_number_are_read() -> None:
    found = [job_of({**ROW, "user_id": value}).user_id for value in (0, {"set": True, "number": 0}, UID)]
    assert found == [0, 0, UID]
