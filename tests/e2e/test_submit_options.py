"""Nothing that a user submits ends slurmd, and what jobs get of a login's environment, on a real cluster."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cluster import SHARED, Cluster

SCRIPT = Path(__file__).with_name("submit_options.py").read_text()
USER = "opal"
LEAST = {"sbatch": 85, "srun": 100, "salloc": 70}
"""Options that the help of Slurm 24.11 has, and some more: a walk that found fewer would show nothing."""


@pytest.fixture(scope="module")
def user(bank: Cluster) -> Iterator[str]:
    """A user who is not root, whose login sets a variable, and who runs something each minute."""
    bank.wait_until_idle()
    bank.ssh(
        f"useradd --create-home --shell /bin/bash {USER}; sacctmgr -i -Q add user {USER} account=root;"
        f"echo 'export GREETING=hello' >> /home/{USER}/.profile"
    )
    yield USER
    by_user(bank, "scrontab -r; scancel --me")
    bank.wait_until_idle()
    bank.ssh(f"userdel -r {USER}; sacctmgr -i -Q remove user {USER}; true")


def by_user(bank: Cluster, command: str, seconds: float = 240) -> str:
    return bank.ssh(f"cd /home/{USER} && su {USER} -c {shlex.quote(command)}", seconds=seconds)


@pytest.fixture(autouse=True)
def daemons_stay(bank: Cluster, user: str) -> Iterator[None]:
    """No test ends slurmd, or a container of a worker."""
    before = daemons(bank)
    yield
    assert daemons(bank) == before


def daemons(bank: Cluster) -> list[str]:
    """The slurmd of each worker: its container and process, and when it started."""
    asked = ("sh", "-c", "hostname; pgrep --oldest --exact slurmd; stat -c %Z /proc/$(pgrep -o -x slurmd)")
    return [*bank.containers("worker-0", "ID"), *(bank.in_pod(f"worker-{index}", *asked) for index in (0, 1))]


def environment_of(bank: Cluster, *options: str) -> dict[str, str]:
    """The variables of a batch job that the user submitted with more variables than a login has."""
    wrap = shlex.quote("env -0 | tr '\\n\\0' ' \\n' > out; echo done >> out")
    said = by_user(
        bank,
        f"rm -f out; FOO=submitted BAR=also sbatch --parsable --mem=50 {' '.join(options)} --wrap {wrap}",
    )
    wait_until(
        lambda: "done" in by_user(bank, "cat out || true").splitlines(), f"job {said} has run", seconds=60
    )
    entries = [line.partition("=") for line in by_user(bank, "cat out").splitlines()[:-1]]
    return {name: value for name, _, value in entries}


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ("--export=NONE", {}),
        ("--export=NIL", None),
        ("--export=FOO", {"FOO": "submitted"}),
        ("--export=FOO=other,BAR", {"FOO": "other", "BAR": "also"}),
        ("--get-user-env", {"FOO": "submitted", "BAR": "also"}),
        ("--get-user-env=5L --export=ALL", {"FOO": "submitted", "BAR": "also"}),
        ("--export=NONE --get-user-env", {}),
    ],
)
def test_a_job_has_the_environment_that_slurm_documents(
    bank: Cluster, options: str, kept: dict[str, str] | None
) -> None:
    found = environment_of(bank, options)
    assert {name: found[name] for name in ("FOO", "BAR") if name in found} == (kept or {})
    assert found["SLURM_JOB_ID"]
    if kept is not None:  # NIL: not even a login's
        assert (found["GREETING"], found["HOME"], found["USER"]) == ("hello", f"/home/{USER}", USER)


@pytest.mark.parametrize(
    "profile",
    [
        "sleep 1000",
        "setsid sleep 1000 & sleep 1000 &",
        "yes GREETING=flood",
        "exit 1",
        "trap '' TERM; sleep 99; sleep 99",
    ],
)
def test_a_login_that_hangs_or_floods_or_leaves_something_holds_up_no_job(
    bank: Cluster, profile: str
) -> None:
    by_user(bank, f"cp .profile kept && printf '%s\\n' {shlex.quote(profile)} >> .profile")
    try:
        assert environment_of(bank, "--export=NONE")["SLURM_JOB_ID"]
    finally:
        by_user(bank, "mv kept .profile")
    bank.wait_until_idle()
    left = "ps -eo user:20,args | grep -E '^opal .*(sleep (1000|99)|yes)' || true"
    wait_until(lambda: not bank.in_pod("worker-0", "sh", "-c", left).strip(), "nothing is left", seconds=90)


def test_a_script_that_the_control_plane_submits_may_ask_for_a_login_environment(bank: Cluster) -> None:
    script = f"#!/bin/bash\n#SBATCH --export=NONE\n#SBATCH --output={SHARED}/of-login\necho $HOME $FOO end\n"
    bank.cloud.neo("slurm", "job", "submit", "bank", "-", "--wait", "--env", "FOO=bar", stdin=script)
    assert bank.ssh(f"cat {SHARED}/of-login; rm {SHARED}/of-login") in ("/root bar end", "/root end")


def test_every_option_of_the_help_leaves_the_nodes_up_and_jobs_beside_it_running(bank: Cluster) -> None:
    bank.ssh(f"cat > /home/{USER}/options.py", stdin=SCRIPT)
    bank.ssh(f"rm -f {SHARED}/ended")
    beside = bank.sbatch("until [ -e ended ]; do sleep 0.5; done", "--nodelist=worker-0", "--mem=100M")
    wait_until(lambda: bank.job_state(beside) == "RUNNING", "a job runs beside them")
    try:
        said = json.loads(by_user(bank, "python3 options.py sbatch srun salloc", 590).splitlines()[-1])
    finally:
        bank.ssh(f"touch {SHARED}/ended")
    assert bank.wait_for_job(beside) == "COMPLETED" and "Restarts=0" in bank.ssh(
        f"scontrol show job {beside}"
    )
    for program, least in LEAST.items():
        taken = [option for option, (code, _) in said[program].items() if code == 0]
        assert len(said[program]) >= least, (program, sorted(said[program]))
        assert len(taken) > least // 3, (program, said[program])  # not all refused
    bank.wait_until_idle()


def test_what_scrontab_has_runs_by_the_clock_with_the_users_environment(bank: Cluster) -> None:
    """The crontab is set here, since the tests before break the login of the user on purpose."""
    by_user(bank, "printf '#SCRON --mem=50 --time=1\\n* * * * * echo $GREETING >> ~/ticked\\n' | scrontab -")
    wait_until(lambda: "hello" in by_user(bank, "cat ticked || true"), "it has run", seconds=130)
    assert "echo $GREETING" in by_user(bank, "scrontab -l")
    by_user(bank, "scrontab -r")


def test_mpi_makes_no_folder_where_a_job_says(bank: Cluster) -> None:
    """slurmstepd, which is root, would make it for the job's user in anybody's folder."""
    bank.ssh("mkdir -p /home/shared/of-root && chmod 755 /home/shared/of-root")
    step = "srun --mpi=pmix --mem=50 sh -c 'ls of-root; env | grep -c SLURM_PMIX_TMPDIR || true'"
    there = "export SLURM_PMIX_TMPDIR=/home/shared/of-root; cd /home/shared"
    assert by_user(bank, f"{there}; {step}").split() == ["0"]
    batch = f"sbatch --wait --quiet --mem=50 --output=/home/{USER}/o --wrap {shlex.quote(step)}"
    assert by_user(bank, f"{there}; {batch}; cat ~/o").split() == ["0"]
    bank.ssh("rmdir /home/shared/of-root")
