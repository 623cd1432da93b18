"""A cloud stops and comes back; its server dies at the worst moments; and in the end nothing is left."""

import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import Cloud
from tests.e2e.cluster import SHARED, Cluster, user_key
from tests.e2e.machine import Marks, traces
from tests.e2e.reader import LEAVES_SHELLS, follow
from tests.iterations import iterations
from tests.real.guides.session import Reader

SMALL = ("--preset", "1vcpu-1gb")
SEED = 11
GETTING_STARTED = "docs/guides/getting-started.md"
NOT_HERE = {
    "git clone": "needs the internet",
    "make ": "needs the internet",
    "export PATH": "the tests' own path leads to it already",
    "neo slurm cluster create": "the test before has made the cluster, which the page calls lab, too",
    "neo slurm cluster check": "fails on a busy machine: tests/e2e/test_cluster.py",
    "from nebius": "run on the emulator",
    "neo down": "the first test of this file",
    "neo destroy": "the last test of this file",
}


def test_down_and_up_bring_everything_back_and_a_job_that_was_cut_off_runs_again(bank: Cluster) -> None:
    """SLURM-20: files, accounting, host key, and what was running."""
    bank.wait_until_idle()
    cloud = bank.cloud
    bank.ssh(f"echo kept > {SHARED}/kept && rm -f {SHARED}/cut")
    ended = bank.sbatch("hostname", "--job-name=ended")
    assert bank.wait_for_job(ended) == "COMPLETED"
    cut_off = bank.sbatch(
        f"echo run >> {SHARED}/cut; until [ $(wc -l < {SHARED}/cut) -ge 2 ]; do sleep 0.2; done", "--requeue"
    )
    wait_until(lambda: bank.try_ssh(f"cat {SHARED}/cut").stdout, "the job runs")
    cloud.neo("down")
    assert cloud.podman("ps", "--format={{.Names}}") == ""
    cloud.neo("status", code=5)
    assert "neo up" in cloud.neo("slurm", "cluster", "list", code=5).stderr

    first, second = (cloud.start_neo("up") for _ in range(2))
    assert (first.wait(300), second.wait(300)) == (0, 0), "two `neo up` at once"
    bank.write_ssh_config()
    wait_until(lambda: bank.try_node_states().get("worker-0"), "the login node answers", seconds=240)
    assert bank.wait_for_job(cut_off, seconds=240) == "COMPLETED"
    bank.wait_until_idle(seconds=240)
    assert bank.ssh(f"cat {SHARED}/kept") == "kept"
    assert bank.ssh(f"sacct -nXP -j {ended} -o JobName,State") == "ended|COMPLETED"


@pytest.fixture(scope="module")
def victim(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """A cloud of its own, whose server is killed again and again, and which is destroyed in the end."""
    cloud = Cloud.prepare(tmp_path_factory.mktemp("victim"), images)
    try:
        cloud.up()
        yield cloud
    finally:
        cloud.neo("destroy", "--yes")


@pytest.mark.repeated
def test_a_server_killed_at_any_moment_of_a_change_converges_without_orphan_or_duplicate(
    victim: Cloud,
) -> None:
    """SLURM-20: create, scale up, scale down, delete, create; each cut off by `kill -9`, then taken up."""
    moments = random.Random(SEED)
    gateway = (victim.home / "gateway" / "process.json").read_text()
    create = ("create", "lab", *SMALL, "--workers", "1", "--ssh-key", f"{user_key(victim)}.pub", "--reuse")
    changes = (
        (create, 1),
        (("scale", "lab", "--workers", "2"), 2),
        (("scale", "lab", "--workers", "1"), 1),
        (("delete", "lab", "--yes"), 0),
        (create, 1),
    )
    for verb, workers in changes[: iterations(len(changes), least=2)]:
        change = victim.start_neo("slurm", "cluster", *verb)
        moment = moments.uniform(0.3, 4.0)
        threading.Event().wait(moment)  # the moment is what is tried out, not a condition
        os.kill(victim.server["pid"], signal.SIGKILL)
        change.wait(300)
        victim.up()  # its supervisor starts it again; this waits until it is ready
        if not accepted(victim, workers):
            victim.neo("slurm", "cluster", *verb)
        said = f"{verb[0]} killed after {moment:.2f} s"
        if workers:
            has_one_cluster(victim, workers, said)
        else:
            has_nothing(victim, said)
    assert (victim.home / "gateway" / "process.json").read_text() == gateway, "the gateway continued"


def accepted(cloud: Cloud, workers: int) -> bool:
    """The change is in the store: from here on it is the cloud's business, not the user's."""
    found = cloud.clusters()
    if not workers:
        return not found or found[0]["status"]["state"] == "DELETING"
    return bool(found) and found[0]["spec"]["node_sets"][0].get("count") == str(workers)


def is_settled(cluster: dict[str, Any]) -> bool:
    return cluster["status"]["state"] == "READY" and not cluster["status"].get("reconciling")


def node_names(cluster: dict[str, Any]) -> list[str]:
    """Return the nodes in its status, which has nothing yet about a change that was just accepted."""
    return [node["name"] for node in cluster["status"].get("nodes", [])]


def has_one_cluster(cloud: Cloud, workers: int, what: str) -> None:
    """One cluster, with exactly its pods, its network, its volumes, and its nodes in Slurm."""
    nodes = [f"worker-{index}" for index in range(workers)]
    wait_until(
        lambda: [node_names(item) for item in cloud.clusters() if is_settled(item)] == [nodes],
        what,
        seconds=240,
    )
    cluster = Cluster(cloud, "lab")
    parts = {
        "controller-0": ("_", "controller", "rest"),
        "accounting-0": ("_", "accounting", "database"),
        "login-0": ("_", "login"),
        **{f"worker-{index}": ("_", "worker") for index in range(workers)},
    }
    wanted = sorted(f"{cluster.id}.{pod}.{name}" for pod, names in parts.items() for name in names)
    assert sorted(cloud.podman("ps", "--format={{.Names}}").split()) == wanted, what
    assert sorted(cloud.podman("ps", "--all", "--format={{.Names}}").split()) == wanted, what
    assert len(networks(cloud)) == 1, what
    assert len(cloud.neo_json("compute", "filesystem", "list")) == 1, what
    assert len(list((cloud.home / "volumes").glob("*/*"))) == 3, what
    said = cluster.in_pod("controller-0", "sinfo", "--noheader", "--Node", "--partition=main", "--format=%N")
    assert said.split() == nodes, what


def has_nothing(cloud: Cloud, what: str) -> None:
    wait_until(lambda: cloud.clusters() == [], what, seconds=240)
    assert cloud.podman("ps", "--all", "--format={{.Names}}") == "", what
    assert networks(cloud) == [], what
    assert cloud.neo_json("compute", "filesystem", "list") == [], what
    assert list((cloud.home / "volumes").glob("*/*")) == [], what


def networks(cloud: Cloud) -> list[str]:
    """Return the networks of clusters; the project's own network is there all the time."""
    return cloud.podman("network", "ls", "--format={{.Name}}", "--filter=name=-slurmcluster-").split()


def test_getting_started_works_as_written(victim: Cloud, tmp_path: Path) -> None:
    """IAC-03: jobs, ssh, scp, scaling, `neo ps` and the bill of a real cluster."""
    victim.neo("slurm", "cluster", "scale", "lab", "--workers", "2")
    reader = Reader(not_run=NOT_HERE, types=LEAVES_SHELLS)
    said = follow(victim, GETTING_STARTED, tmp_path, reader=reader)
    assert "\nSubmitted batch job " in said
    lines = [line.strip() for line in said.splitlines()]
    assert {"worker-0", "worker-1"} <= set(lines), "the job printed the names of its nodes"
    assert lines.count("logout") == 2
    nodes = victim.clusters()[0]["status"]["nodes"]
    assert [node["name"] for node in nodes] == ["worker-0", "worker-1", "worker-2"]


def test_destroy_leaves_no_container_network_image_mount_rule_process_or_file(victim: Cloud) -> None:
    """The cloud has a running cluster; its marks are found before and not after."""
    assert len(victim.clusters()) == 1
    marks = Marks.of(victim)
    before = traces(marks)
    assert {"mounts", "links", "nft rules", "processes", "files"} <= set(before)
    victim.neo("destroy", "--yes")
    assert traces(marks) == {}
    assert not victim.home.exists()
    left = [path for path in victim.folder.rglob("*") if path.is_file() or "neocloud" in path.name]
    assert sorted(path.name for path in left) == ["id_ed25519", "id_ed25519.pub"]
    again = victim.neo("destroy", "--yes")
    assert "nothing to remove" in again.stderr
