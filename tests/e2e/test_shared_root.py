"""Jobs and login shells see the shared root as "/", and nothing a user does there breaks the daemons."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cluster import SHARED, Cluster

ON_BOTH = ("--nodes=2", "--ntasks-per-node=1")


@pytest.fixture(autouse=True)
def idle(bank: Cluster) -> None:
    bank.wait_until_idle()


def test_jobs_and_login_shells_see_the_same_root_and_nodes_keep_what_is_their_own(bank: Cluster) -> None:
    """SLURM-04, SLURM-05."""
    bank.ssh("date > /etc/made-by-login && hostname > /tmp/private-to-login")
    output = bank.run_job(
        "srun bash -c 'cat /etc/made-by-login > /dev/null && hostname && ls /tmp/private-to-login 2>&1'"
        " | sort; srun bash -c 'echo from-$SLURMD_NODENAME > /srv/$SLURMD_NODENAME; uname -n' >/dev/null",
        *ON_BOTH,
        "|| true",
    )
    assert output.split("\n").count("worker-0") == 1 and output.split("\n").count("worker-1") == 1
    assert output.count("No such file") == 2
    assert bank.ssh("cat /srv/worker-0 /srv/worker-1").split() == ["from-worker-0", "from-worker-1"]
    bank.ssh("rm /etc/made-by-login /tmp/private-to-login /srv/worker-0 /srv/worker-1")


def test_a_python_package_installed_in_a_login_shell_is_there_in_a_job_on_every_node(
    bank: Cluster, tmp_path: Path
) -> None:
    """SLURM-06."""
    wheel = tmp_path / "tiny_answer-1.0-py3-none-any.whl"
    info = "tiny_answer-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_answer.py", "VALUE = 42\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-answer\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    bank.copy_in(wheel, "/root/")
    bank.ssh(f"pip install --no-index --quiet /root/{wheel.name}")
    output = bank.run_job("srun python3 -c 'import tiny_answer; print(tiny_answer.VALUE)'", *ON_BOTH)
    assert output.split() == ["42", "42"]


def test_a_debian_package_installed_in_a_login_shell_is_there_in_a_job_on_every_node(
    bank: Cluster, tmp_path: Path
) -> None:
    """SLURM-06: made on the spot, so that nothing is fetched."""
    root = tmp_path / "package"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "usr/bin").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        "Package: tiny-tool\nVersion: 1.0\nArchitecture: all\nMaintainer: Tests <tests@example.com>\n"
        "Description: says where it runs\n"
    )
    tool = root / "usr/bin/tiny-tool"
    tool.write_text("#!/bin/sh\necho tool on $(hostname)\n")
    tool.chmod(0o755)
    package = tmp_path / "tiny-tool.deb"
    subprocess.run(
        ["dpkg-deb", "--build", "--root-owner-group", root, package], check=True, capture_output=True
    )
    bank.copy_in(package, "/root/")
    bank.ssh("apt-get install -y -q /root/tiny-tool.deb")
    output = bank.run_job("srun tiny-tool", *ON_BOTH)
    assert sorted(output.splitlines()) == ["tool on worker-0", "tool on worker-1"]
    bank.ssh("apt-get purge -y -q tiny-tool")


def test_a_job_as_root_finds_neither_the_cluster_keys_nor_the_daemons_files(bank: Cluster) -> None:
    """SLURM-07: the keys are looked for by content, wherever they may be."""
    key = bank.in_pod("worker-0", "sha256sum", "/etc/slurm/slurm.key").split()[0]
    looking = "\n".join(
        (
            "find / -xdev -size 1024c -type f -not -path '/proc/*' -not -path '/sys/*' 2>/dev/null"
            f" | xargs -r sha256sum | grep -c {key}",
            "find / -name 'slurm.key' -o -name 'jwt.key' -o -name slurmdbd.conf 2>/dev/null | wc -l",
            "ls /etc/neocloud 2>/dev/null | wc -l",
            # Through the daemon's own view of the file system, which root may follow elsewhere.
            "for pid in $(pgrep -x slurmd) $(pgrep -x slurmstepd) 1; do"
            " cat /proc/$pid/root/etc/slurm/slurm.key 2>/dev/null | wc -c; done | sort -u",
        )
    )
    assert bank.run_job(looking).split() == ["0", "0", "0", "0"]
    assert bank.ssh(looking + "; true").split() == ["0", "0", "0", "0"]


ACCIDENTS = (
    "rm -rf /opt/slurm/* /run/slurm/* /var/spool/slurmd/*",
    "touch /opt/slurm/plugins/evil.so",
    "mv /opt/slurm/bin/srun /opt/slurm/bin/other",
    "mount -o remount,rw /opt/slurm",
    "umount -l /opt/slurm",
    "mount -t tmpfs none /opt/slurm",
    "rm -rf /run/slurm/* /opt/slurm/*",
)


def test_accidents_of_root_in_a_job_and_a_login_shell_do_not_reach_the_daemons(bank: Cluster) -> None:
    """SLURM-07: files of the daemons are compared from outside before and after."""
    before = {pod: daemons_files(bank, pod) for pod in ("worker-0", "worker-1", "login-0")}
    assert all("/opt/slurm/bin/srun" in files for files in before.values())
    everything = "\n".join(f"{{ {accident}; }} 2>/dev/null" for accident in ACCIDENTS)
    bank.run_job(f"srun bash -c '{everything}\ntrue'\n{everything}\ntrue", *ON_BOTH)
    bank.ssh(f"{everything}\ntrue")
    assert {pod: daemons_files(bank, pod) for pod in before} == before
    assert bank.run_job("srun hostname | sort", *ON_BOTH).split() == ["worker-0", "worker-1"]


def daemons_files(bank: Cluster, pod: str) -> set[str]:
    """Return the files that the daemons see, outside the shared root."""
    return set(bank.in_pod(pod, "find", "/opt/slurm", "/run/slurm", "/etc/slurm").split())


def test_a_user_who_writes_configuration_for_slurm_harms_nobody_but_the_own_commands(bank: Cluster) -> None:
    """SLURM-07: the daemons' configuration is not in the shared root, also not when a node starts again."""
    bank.ssh("mkdir -p /etc/slurm && echo nonsense > /etc/slurm/slurm.conf")
    try:
        removed = bank.remove_pods("worker-1")
        wait_until(
            lambda: (ids := bank.containers("worker-1", "ID")) and removed.isdisjoint(ids), "made again"
        )
        sinfo = ("sinfo", "--noheader", "--partition=main", "--format=%D %T")
        wait_until(lambda: bank.in_pod("controller-0", *sinfo).strip() == "2 idle", "both nodes are idle")
    finally:
        bank.ssh("rm -r /etc/slurm")


def test_a_node_whose_slurmd_is_killed_from_inside_a_job_comes_back(bank: Cluster) -> None:
    """SLURM-07, SLURM-20: root may kill the daemon of the node; the cluster heals by itself."""
    bank.sbatch("pkill -9 -x slurmd", "--nodelist=worker-1", "--no-requeue")
    bank.wait_until_idle(seconds=240)
    assert bank.run_job("hostname", "--nodelist=worker-1") == "worker-1"


def test_jobs_beside_one_that_kills_slurmd_run_on(bank: Cluster) -> None:
    """Again and again: the other job is neither ended nor started again."""
    bank.ssh(f"rm -f {SHARED}/ended")
    beside = bank.sbatch("until [ -e ended ]; do sleep 0.5; done", "--nodelist=worker-1", "--mem=500M")
    wait_until(lambda: bank.job_state(beside) == "RUNNING", "a job runs beside it")
    container = bank.containers("worker-1", "ID")
    asked = ("sh", "-c", "pgrep -ox slurmd || true")
    try:
        for _ in range(2):
            known = bank.in_pod("worker-1", "pgrep", "-ox", "slurmd")
            bank.sbatch("pkill -9 -x slurmd", "--nodelist=worker-1", "--mem=500M", "--no-requeue")
            wait_until(
                lambda known=known: bank.in_pod("worker-1", *asked) not in ("", known), "another slurmd"
            )
    finally:
        bank.ssh(f"touch {SHARED}/ended")
    assert bank.wait_for_job(beside) == "COMPLETED"
    assert "Restarts=0" in bank.ssh(f"scontrol show job {beside}; rm {SHARED}/ended")
    assert bank.containers("worker-1", "ID") == container
    bank.wait_until_idle(seconds=240)


def test_the_login_shells_files_survive_in_the_shared_root(bank: Cluster) -> None:
    """SLURM-04: /home, /root and /mnt are one file system for all."""
    bank.ssh(f"mkdir -p /mnt/data && echo kept > /mnt/data/kept && echo kept > {SHARED}/kept")
    assert bank.run_job(f"srun cat /mnt/data/kept {SHARED}/kept", *ON_BOTH).split() == ["kept"] * 4
