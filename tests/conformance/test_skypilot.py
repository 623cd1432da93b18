"""SkyPilot, unmodified, on machines that really boot (EXP-01, CMP-01, CMP-09).

`sky check`, `launch`, its output, `stop`, `start`, `down`: each as a user types it, over TLS under the
cloud's own authority.
"""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.trust import trusting
from tests.e2e.cloud import Cloud

pytestmark = pytest.mark.e2e
LAUNCH_SECONDS = 900.0

Sky = Callable[..., str]


@pytest.fixture(scope="module")
def sky(machine_cloud: Cloud, client_program) -> Iterator[Sky]:
    program: Path = client_program("skypilot", "sky")
    machine_cloud.neo("client-config", "sky", "--only-this-cloud")
    environment = {**machine_cloud.environment, "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    environment["PATH"] = f"{program.parent}:{environment['PATH']}"

    def run(*words: str, seconds: float = 120.0) -> str:
        done = subprocess.run(
            trusting(machine_cloud, program, *words),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
        said = f"sky {' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, said
        return done.stdout + done.stderr

    try:
        yield run
    finally:
        run("api", "stop")


def test_check_finds_the_cloud(sky: Sky) -> None:
    assert "Nebius: enabled [compute]" in sky("check", "nebius")
