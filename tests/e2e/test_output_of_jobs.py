"""The path of a job's output, set by a user of a cluster, and the content that the API returns (H2)."""

import shlex
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.cluster import Cluster

SECRET = "of-root-alone"
As = Callable[[str], str]


@pytest.fixture
def as_user(bank: Cluster, local_user: str) -> Iterator[As]:
    """Runs a command as an ordinary user; there is a file that only root may read."""
    bank.wait_until_idle()
    bank.ssh(f"umask 077 && echo {SECRET} > /root/secret")
    yield lambda command: bank.ssh(f"cd / && su {local_user} -c {shlex.quote(command)}")
    bank.ssh("rm -f /root/secret")


def test_what_the_user_may_not_read_does_not_come_back(bank: Cluster, local_user: str, as_user: As) -> None:
    home = f"/home/{local_user}"
    paths = {
        "/root/secret": "cannot be opened",  # the job fails, its record keeps the path
        f"{home}/link.log": "it is a link",
        "/etc/passwd": "a file of another user",
        f"{home}/pipe": "not a plain file",
    }
    submit = f"sbatch --wait --parsable --chdir={home} --wrap 'echo mine'"
    jobs = {path: as_user(f"{submit} -o {path} || true").splitlines()[-1] for path in paths}
    assert bank.cloud.neo("slurm", "job", "logs", "bank", jobs[f"{home}/link.log"]).stdout == "mine\n"
    as_user(f"cd {home}; rm link.log pipe; ln -s /root/secret link.log; mkfifo pipe")
    for path, why in paths.items():
        said = bank.cloud.neo("slurm", "job", "logs", "bank", jobs[path], code=None)
        assert said.returncode and why in said.stderr and SECRET not in said.stdout + said.stderr, path


def test_output_of_root_is_read_where_nobody_leads_it(bank: Cluster, local_user: str, as_user: As) -> None:
    own, below = bank.sbatch("echo of root"), f"/home/{local_user}/below"
    as_user(f"mkdir {below}")
    theirs = bank.sbatch("echo of root", f"--output={below}/secret")
    for job in (own, theirs):
        assert bank.wait_for_job(job) == "COMPLETED"
        assert bank.cloud.neo("slurm", "job", "logs", "bank", str(job)).stdout == "of root\n"
    as_user(f"mv {below} {below}.old && ln -s /root {below}")
    said = bank.cloud.neo("slurm", "job", "logs", "bank", str(theirs), code=None)
    assert said.returncode and "is a link" in said.stderr and SECRET not in said.stdout
