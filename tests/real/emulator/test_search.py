"""`neo` finds names on a real server with one call, and leaves no line about kinds that have none."""

import os
import subprocess
import sys
from collections.abc import Callable

from neocloud.testing.emulator import Emulator


def neo(cloud: Emulator, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "neocloud.cli.main", *arguments],
        env={**os.environ, **cloud.environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_name_is_looked_up_without_a_trace(
    neocloud_emulator: Emulator, new_name: Callable[[], str]
) -> None:
    cloud, name = neocloud_emulator, new_name()
    log = cloud.home / "server.log"
    metadata = {"parent_id": cloud.project_id, "name": name}
    spec = {"type": "NETWORK_SSD", "size_gibibytes": 1}
    made = cloud.client.call(
        "nebius.compute.v1.FilesystemService/Create", {"metadata": metadata, "spec": spec}
    )
    cloud.client.wait(made)
    before = log.stat().st_size
    lost = neo(cloud, "ssh", "lost-name")
    assert lost.returncode == 3 and "There is no machine and no Slurm cluster 'lost-name'" in lost.stderr
    none = neo(cloud, "logs", name)
    assert none.returncode == 3 and f"Nothing runs in the filesystem {name!r}" in none.stderr
    with log.open() as file:
        file.seek(before)
        assert "NOT_FOUND" not in file.read()
