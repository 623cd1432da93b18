"""SkyPilot, unmodified, on machines that really boot (IAC-01, CMP-01, CMP-09).

`sky check`, `launch`, `stop`, `start`, `down`: each as a user types it, over TLS under the cloud's own
authority. On a new machine SkyPilot installs a runtime of its own from the internet. Where there is none it
goes as far as that: the machine is up, SkyPilot is signed in, and its files are there. With internet the
task's output is checked.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import Cloud
from tests.long.conformance.trust import trusting

UP = "Instance is up."
NO_INTERNET = "Could not resolve host"
BOOT_SECONDS = 300.0
CLUSTER = "dev"


@dataclass(frozen=True)
class Sky:
    """The `sky` command of a user of one cloud."""

    cloud: Cloud
    program: Path

    @property
    def environment(self) -> dict[str, str]:
        own = {
            "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
            "PATH": f"{self.program.parent}:{os.environ['PATH']}",
        }
        return {**self.cloud.environment, **own}

    def __call__(self, *words: str, seconds: float = 120.0) -> str:
        """Return the output of the command; fails the test unless it succeeds."""
        done = subprocess.run(
            trusting(self.cloud, self.program, *words),
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
        said = f"sky {' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, said
        return done.stdout + done.stderr

    def until_up(self, *words: str, waits_for_runtime: bool) -> str:
        """Run a command that boots a machine until SkyPilot has signed in to it, or until it has also
        installed its runtime there, or cannot for want of the internet; what it said so far."""
        started = time.time()
        output = self.cloud.folder / f"sky-{words[0]}.log"
        with output.open("wb") as log:
            process = subprocess.Popen(
                trusting(self.cloud, self.program, *words),
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            wait_until(
                lambda: (
                    process.poll() is not None
                    or (
                        UP in output.read_text()
                        and (not waits_for_runtime or NO_INTERNET in self.provision_log(started))
                    )
                ),
                lambda: output.read_text() + self.provision_log(started)[-4000:],
                seconds=BOOT_SECONDS,
                poll_seconds=0.5,
            )
        finally:
            if process.poll() is None:
                # SkyPilot's server continues with it until `stop` or `down`.
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(30)
        return output.read_text()

    def provision_log(self, since: float) -> str:
        folder = self.cloud.folder / "user" / "sky_logs"
        logs = [path for path in folder.glob("*/provision.log") if path.stat().st_mtime >= since]
        return "".join(path.read_text(errors="replace") for path in logs)


@pytest.fixture(scope="module")
def sky(machine_cloud: Cloud, client_program) -> Iterator[Sky]:
    machine_cloud.neo("client-config", "sky", "--only-this-cloud")
    command = Sky(machine_cloud, client_program("skypilot", "sky"))
    command("api", "stop")  # its server outlives a test run that was cut off, and would ask another cloud
    try:
        yield command
    finally:
        command("api", "stop")


def machines(cloud: Cloud) -> dict[str, str]:
    """State by name."""
    listed = cloud.neo_json("compute", "instance", "list")
    return {item["metadata"]["name"]: item["status"]["state"] for item in listed}


def test_check_finds_the_cloud(sky: Sky) -> None:
    assert "Nebius: enabled [compute]" in sky("check", "nebius")


def test_a_machine_is_launched_stopped_started_and_taken_down(sky: Sky, machine_cloud: Cloud) -> None:
    # One processor: two emulated ones wait for each other where the host is busy.
    shape = ("--infra", "nebius", "--instance-type", "cpu-local_1vcpu-4gb")
    task = ("--", "echo", "hello-from-the-task")
    said = sky.until_up("launch", "-y", "-c", CLUSTER, *shape, *task, waits_for_runtime=True)
    assert UP in said
    if NO_INTERNET not in sky.provision_log(0):
        assert re.search(r"^.*hello-from-the-task$", said, re.MULTILINE)
    ((name, state),) = machines(machine_cloud).items()
    assert (name.startswith(CLUSTER), state) == (True, "RUNNING")
    sky("stop", "-y", CLUSTER)
    assert machines(machine_cloud) == {name: "STOPPED"}
    assert UP in sky.until_up("start", "-y", CLUSTER, waits_for_runtime=False)
    assert machines(machine_cloud) == {name: "RUNNING"}
    sky("down", "-y", CLUSTER)
    assert machines(machine_cloud) == {}
    groups = machine_cloud.neo_json("vpc", "security-group", "list")
    assert not [group for group in groups if group["metadata"]["name"].startswith("sky-sg")]
