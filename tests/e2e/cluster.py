"""One Slurm cluster as its user sees it: ssh with the user's own key, sbatch, squeue, sacct, files."""

import os
import signal
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.service import environment
from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import Cloud, run

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL")
SHARED = "/home/shared"


@dataclass
class Cluster:
    cloud: Cloud
    name: str

    @classmethod
    def create(cls, cloud: Cloud, name: str, *arguments: str) -> "Cluster":
        """With `neo`, by the user's key; READY when it returns."""
        cluster = cls(cloud, name)
        cluster.creation = cloud.neo(
            "slurm", "cluster", "create", name, "--ssh-key", str(user_key(cloud)) + ".pub", *arguments
        )
        return cluster

    creation: Any = None
    """What `neo slurm cluster create` said."""

    @property
    def record(self) -> dict[str, Any]:
        """The cluster as the API shows it."""
        return next(item for item in self.cloud.clusters() if item["metadata"]["name"] == self.name)

    @cached_property
    def id(self) -> str:
        return self.record["metadata"]["id"]

    @property
    def state(self) -> str:
        return self.record["status"]["state"]

    @property
    def ssh_config(self) -> Path:
        return self.cloud.folder / "user" / f"{self.name}.ssh"

    def write_ssh_config(self) -> None:
        said = self.cloud.neo(
            "slurm", "cluster", "ssh-config", self.name, "--identity", str(user_key(self.cloud))
        )
        self.ssh_config.write_text(said.stdout)

    def try_ssh(self, command: str, *, stdin: str = "", seconds: float = 120.0):
        """Run a shell command in a login session."""
        if not self.ssh_config.exists():
            self.write_ssh_config()
        return subprocess.run(
            ["ssh", "-F", str(self.ssh_config), self.name, command],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def ssh(self, command: str, *, stdin: str = "", seconds: float = 120.0) -> str:
        """Its output, stripped. Fails the test unless it succeeds."""
        done = self.try_ssh(command, stdin=stdin, seconds=seconds)
        assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def copy_in(self, source: Path, target: str) -> None:
        if not self.ssh_config.exists():
            self.write_ssh_config()
        run(["scp", "-q", "-F", self.ssh_config, "-r", source, f"{self.name}:{target}"])

    def copy_out(self, source: str, target: Path) -> None:
        run(["scp", "-q", "-F", self.ssh_config, "-r", f"{self.name}:{source}", target])

    # Jobs

    def sbatch(self, body: str, *options: str) -> int:
        """Submit a bash script over ssh; the number of the job. Its output lands in SHARED."""
        command = f"cd {SHARED} && sbatch --parsable {' '.join(options)}"
        return int(self.ssh(command, stdin=f"#!/bin/bash\n{body}\n").split(";")[0])

    def job_state(self, job: int | str) -> str:
        """The state of a job's current run."""
        said = self.ssh(f"scontrol --oneliner show job {job} || sacct -nXP -j {job} -o State")
        if "JobState=" in said:
            return said.partition("JobState=")[2].split()[0]
        return said.splitlines()[-1].split()[0] if said else ""

    def wait_for_job(self, job: int | str, *, seconds: float = 240.0) -> str:
        """Its last state."""
        return wait_until(
            lambda: state if (state := self.job_state(job)) in ENDED else "",
            f"job {job} ended",
            seconds=seconds,
        )

    def run_job(self, body: str, *options: str, seconds: float = 240.0) -> str:
        """Output of a job that must complete."""
        job = self.sbatch(body, *options)
        state = self.wait_for_job(job, seconds=seconds)
        output = self.output_of(job)
        assert state == "COMPLETED", f"job {job} ended {state}; its output:\n{output}"
        return output

    def evidence(self, job: int | str) -> str:
        """Return the output of Slurm and the control plane about a job, for a test that fails seldom."""
        columns = "JobID,State,ExitCode,Start,End"
        command = f"scontrol show job {job}; sacct --duplicates -j {job} -o {columns}; sinfo -N"
        controller = next(name for name in self.containers("controller-0") if name.endswith(".controller"))
        worker = self.container("worker-1")
        logs = [self.cloud.podman("logs", "--tail", "40", name) for name in (controller, worker)]
        server = (self.cloud.home / "log" / "server.log").read_text()[-4000:]
        return "\n".join([self.ssh(command), self.output_of(job), *logs, server])

    def output_of(self, job: int | str) -> str:
        return self.ssh(f"cat {SHARED}/slurm-{job}.out")

    # Nodes and pods

    def node_states(self) -> dict[str, str]:
        """Every node Slurm knows, with sinfo's word for its state."""
        lines = self.ssh("sinfo --noheader --Node --format='%N %T' --partition=main").splitlines()
        return {name: state for name, state in (line.split() for line in lines)}

    def wait_until_idle(self, workers: int = 2, *, seconds: float = 240.0) -> None:
        """READY, with exactly this many workers that all take jobs."""
        wanted = {f"worker-{index}": "idle" for index in range(workers)}
        wait_until(lambda: self.state == "READY", f"cluster {self.name} is READY", seconds=seconds)
        wait_until(lambda: self.try_node_states() == wanted, f"{workers} idle nodes", seconds=seconds)

    def try_node_states(self) -> dict[str, str]:
        """Return the states as `node_states` does; nothing while the login node does not answer."""
        done = self.try_ssh("sinfo --noheader --Node --format='%N %T' --partition=main")
        return dict(line.split() for line in done.stdout.splitlines()) if done.returncode == 0 else {}

    def containers(self, pod: str, column: str = "Names") -> list[str]:
        """A pod's containers, the one that holds the network of several last."""
        said = self.cloud.podman(
            *("ps", "--all", "--no-trunc", f"--format={{{{.Names}}}} {{{{.{column}}}}}"),
            *("--filter", f"label=neocloud.namespace={self.id}", "--filter", f"label=neocloud.pod={pod}"),
        )
        rows = sorted((line.split() for line in said.splitlines()), key=lambda row: row[0].endswith("._"))
        return [value for _, value in rows]

    def container(self, pod: str) -> str:
        """The name of the only container of a pod beside the one that holds its network."""
        (name,) = (each for each in self.containers(pod) if not each.endswith("._"))
        return name

    def kill(self, pod: str, container: str) -> None:
        """End the first process of a pod's container, as the kernel does when memory runs out."""
        name = next(each for each in self.containers(pod) if each.endswith(f".{container}"))
        os.kill(int(self.cloud.podman("inspect", "--format={{.State.Pid}}", name)), signal.SIGKILL)

    def remove_pods(self, *pods: str) -> set[str]:
        """Remove pods behind the back of the control plane, as an accident would. Return the ids of what was
        removed.
        """
        ids = [self.containers(pod, "ID") for pod in pods]
        # One after another: a container that others depend on goes last.
        for number in range(max(len(of_pod) for of_pod in ids)):
            found = [of_pod[number] for of_pod in ids if number < len(of_pod)]
            wait_until(lambda found=found: self.cloud.removes(*found), f"{pods} are removed", seconds=240)
        return {each for of_pod in ids for each in of_pod}

    def logs(self, container: str) -> str:
        """Return the output of a container, on both streams."""
        command = 'podman logs "$1" 2>&1'
        variables = {**os.environ, **environment(Layout.of(self.cloud.home))}
        return run(["sh", "-c", command, "logs", container], env=variables)

    def in_pod(self, pod: str, *command: str) -> str:
        """Run as root in a pod, outside the shared root: what an operator on the machine can do."""
        container = next(name for name in self.containers(pod) if not name.endswith("._"))
        return self.cloud.podman("exec", container, *command)


def user_key(cloud: Cloud) -> Path:
    """The user's private key; the public one lies beside it."""
    key = cloud.folder / "user" / "id_ed25519"
    if not key.exists():
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "e2e", "-f", key])
    return key
