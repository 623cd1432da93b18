"""Two controllers of a cluster: one takes over from the other, and never two are in control at once.

Jobs run on and new ones are submitted meanwhile. What fails is a slurmctld that hangs, one that cannot start,
the network between the two, and one that stands still together with its guard and wakes up later.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import run
from tests.e2e.cluster import SHARED, Cluster

FIRST, SECOND = "controller-0", "controller-1"
GO = f"{SHARED}/controllers-go-on"
TAKEOVER_SECONDS = 180.0
"""The longest that a test waits; a takeover takes 13 s, and 25 s where the first accepts connections."""


@pytest.fixture(scope="module")
def pair(bank: Cluster) -> Iterator[Cluster]:
    """The shared cluster with a second controller, which comes and goes while a job runs."""
    bank.wait_until_idle()
    with running_job(bank):
        bank.cloud.neo("slurm", "cluster", "scale", bank.name, "--controllers", "2")
        wait_for_control(bank, FIRST)
    yield bank
    wait_for_control(bank, FIRST)
    with running_job(bank):
        bank.cloud.neo("slurm", "cluster", "scale", bank.name, "--controllers", "1")
    assert bank.containers(SECOND) == []


@contextmanager
def running_job(cluster: Cluster) -> Iterator[int]:
    """A job that runs from before until after, once, on the node where it began."""
    cluster.ssh(f"rm -f {GO}")
    job = cluster.sbatch(f"hostname; until [ -e {GO} ]; do sleep 0.2; done", "--open-mode=append")
    wait_until(lambda: cluster.job_state(job) == "RUNNING", "the job runs")
    settled = cluster.sbatch("sleep 6")  # slurmctld saves its state every five seconds
    wait_until(lambda: cluster.job_state(settled) == "COMPLETED", "the job is in the saved state")
    try:
        yield job
    except BaseException:
        cluster.try_ssh(f"scancel {job}")  # the test runs again, on idle nodes
        raise
    shown = f"scontrol --oneliner show job {job}"
    wait_until(lambda: "JobState=RUNNING" in cluster.try_ssh(shown).stdout, "it runs still")
    cluster.ssh(f"touch {GO}")
    wait_until(lambda: "JobState=COMPLETED" in cluster.try_ssh(shown).stdout, "it ended")
    assert "Restarts=0" in cluster.ssh(shown)
    assert len(cluster.output_of(job).split()) == 1, "it ran once"


def controllers(cluster: Cluster) -> dict[str, dict]:
    return {row["name"]: row for row in cluster.record["status"].get("controllers", [])}


def wait_for_control(cluster: Cluster, name: str, *, and_ready: bool = True) -> None:
    def is_so() -> bool:
        rows = controllers(cluster)
        ready = all(row.get("ready") for row in rows.values())
        return len(rows) == 2 and bool(rows[name].get("in_control")) and (ready or not and_ready)

    wait_until(is_so, f"{name} is in control", seconds=TAKEOVER_SECONDS)
    if and_ready:
        found: list[str] = []

        def is_answered() -> bool:
            found[:] = answering(cluster)
            return bool(found)

        wait_until(is_answered, "a controller answers", seconds=TAKEOVER_SECONDS)
        assert found == [name]


def answering(cluster: Cluster) -> list[str]:
    """The controllers that answer as the one in control, each asked by itself."""
    found: list[str] = []
    for name in (FIRST, SECOND):
        made = f"grep -v ^SlurmctldHost= /run/slurm/conf/slurm.conf; echo SlurmctldHost={name}"
        asked = f"({made}) > /tmp/{name}.conf && SLURM_CONF=/tmp/{name}.conf timeout 5 squeue"
        if cluster.try_ssh(asked).returncode == 0:
            found.append(name)
    return found


def submits(cluster: Cluster) -> int:
    """The number of a job that was submitted and ran."""
    submitted: list[int] = []

    def submit() -> bool:
        done = cluster.try_ssh(f"cd {SHARED} && sbatch --parsable --wrap=hostname")
        submitted.extend(int(line) for line in done.stdout.split())
        return done.returncode == 0

    wait_until(submit, "a job is submitted", seconds=TAKEOVER_SECONDS)
    shown = f"scontrol --oneliner show job {submitted[-1]}"
    wait_until(lambda: "JobState=COMPLETED" in cluster.try_ssh(shown).stdout, "it ran", seconds=120)
    return submitted[-1]


def process_of(cluster: Cluster) -> str:
    """The first process of the first controller's container, as this machine counts."""
    name = next(name for name in cluster.containers(FIRST) if name.endswith(".controller"))
    return cluster.cloud.podman("inspect", "--format={{.State.Pid}}", name).strip()


def signal_in(cluster: Cluster, pod: str, signal: str, pattern: str) -> None:
    cluster.in_pod(pod, "pkill", f"-{signal}", "-f", pattern)


def test_a_controller_that_hangs_is_ended_and_starts_again(pair: Cluster) -> None:
    """Before the other may take over, so that its memory of jobs is never used again."""
    with running_job(pair) as job:
        hung = process_of(pair)
        signal_in(pair, FIRST, "STOP", "slurmctld -D")
        assert submits(pair) > job
        assert process_of(pair) != hung
        wait_for_control(pair, FIRST)
    container = next(name for name in pair.containers(FIRST) if name.endswith(".controller"))
    assert "slurmctld has stood still" in pair.logs(container)


@contextmanager
def split(cluster: Cluster) -> Iterator[None]:
    """The two controllers do not reach each other; everybody else reaches both."""
    address = cluster.in_pod(SECOND, "hostname", "--ip-address").split()[0]
    network = cluster.containers(FIRST)[-1]
    process = cluster.cloud.podman("inspect", "--format={{.State.Pid}}", network).strip()
    inside = ("nsenter", "--target", process, "--net", "nft")
    rules = f"""add table ip split
        add chain ip split in {{ type filter hook input priority 0; }}
        add chain ip split out {{ type filter hook output priority 0; }}
        add rule ip split in ip saddr {address} drop
        add rule ip split out ip daddr {address} drop"""
    for rule in rules.splitlines():
        run([*inside, rule.strip()])
    try:
        yield
    finally:
        run([*inside, "delete table ip split"])


@pytest.mark.long
def test_two_that_do_not_reach_each_other_are_never_in_control_at_once(pair: Cluster) -> None:
    """The second neither takes over while the first is well, nor keeps control when the first is back."""
    with running_job(pair) as job, split(pair):
        pinged = pair.in_pod(SECOND, "sh", "-c", "scontrol ping || true").splitlines()
        assert "DOWN" in pinged[0], "it does not reach the first"
        begin, writers = heartbeat(pair)[1], set[int]()

        def beats_on() -> bool:
            writer, moment = heartbeat(pair)
            writers.add(writer)
            return moment > begin + 3 * 12  # three times as long as it takes to take over

        wait_until(beats_on, "the first beats on", seconds=TAKEOVER_SECONDS)
        assert writers == {0} and answering(pair) == [FIRST]

        pair.in_pod(FIRST, "mv", "/usr/sbin/slurmctld", "/usr/sbin/slurmctld.away")
        pair.kill(FIRST, "controller")
        wait_for_control(pair, SECOND, and_ready=False)
        during = submits(pair)
        assert during > job

        wait_until(lambda: broken_is_repaired(pair), "the first can start")
        wait_for_control(pair, FIRST)
        assert submits(pair) > during, "no number is given twice"
    assert f"{during}|COMPLETED" in pair.ssh(f"sacct -nXP -j {during} -o JobID,State")


def heartbeat(cluster: Cluster) -> tuple[int, int]:
    """The number of the controller in control, and when it beat, in seconds of this machine's clock."""
    name = "/usr/local/lib/neocloud/guard-controller"
    number, moment = cluster.in_pod(
        SECOND, "sh", "-c", f"{name} in-control && stat --format=%Y /var/lib/slurm/slurmctld/heartbeat"
    ).split()[::2]
    return int(number), int(moment)


def broken_is_repaired(cluster: Cluster) -> bool:
    """The container starts again and again, so a command in it may come at the wrong moment."""
    try:
        cluster.in_pod(FIRST, "sh", "-c", "cd /usr/sbin; [ -e slurmctld ] || mv slurmctld.away slurmctld")
    except AssertionError:
        return False
    return True


@pytest.mark.long
def test_one_that_stood_still_with_its_guard_does_not_act_when_it_wakes_up(pair: Cluster) -> None:
    with running_job(pair):
        stopped = process_of(pair)
        signal_in(pair, FIRST, "STOP", "guard-controller run|slurmctld -D")
        try:
            wait_until(
                lambda: heartbeat(pair)[0] == 1,
                "the second takes over",
                seconds=TAKEOVER_SECONDS,
            )
        finally:
            signal_in(pair, FIRST, "CONT", "guard-controller run|slurmctld -D")
        during = submits(pair)
        wait_for_control(pair, FIRST)
        assert process_of(pair) != stopped
        assert submits(pair) > during
    container = next(name for name in pair.containers(FIRST) if name.endswith(".controller"))
    assert "ending slurmctld, as the other may have taken over" in pair.logs(container)


@pytest.mark.long
def test_one_that_stands_still_with_its_guard_is_replaced(pair: Cluster) -> None:
    """Its port accepts connections, and Slurm's clients would wait for it."""
    before = pair.containers(FIRST, "ID")
    with running_job(pair) as job:
        signal_in(pair, FIRST, "STOP", "guard-controller run|slurmctld -D")
        assert submits(pair) > job
        wait_for_control(pair, FIRST)
    assert set(before).isdisjoint(pair.containers(FIRST, "ID"))
