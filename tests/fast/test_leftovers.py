"""A test run that is killed leaves nothing behind once the next one has started."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from neocloud.engines.podman.storage.mounts import mounts_below
from neocloud.testing.waiting import wait_until
from tests import ROOT, leftovers

RUN = """
import os, pathlib, subprocess, sys
from neocloud.engines.podman.storage import sized_filesystems
from neocloud.engines.podman.storage.mounts import mount_tmpfs
from tests import leftovers

records, folder = map(pathlib.Path, sys.argv[1:])
leftovers.RECORDS = records
leftovers.mark_run()
leftovers.record_folder(folder)
mount_tmpfs(folder / "memory")
sized_filesystems.create(folder / "image", sized_filesystems.MIN_BYTES)
sized_filesystems.mount(folder / "image", folder / "disk")
name = f"{leftovers.NAMESPACES}{os.getpid()}-left"
subprocess.run(["ip", "netns", "add", name], check=True)
program = "import time; print(flush=True); time.sleep(600)"
inside = ["ip", "netns", "exec", name, sys.executable, "-c", program]
child = subprocess.Popen(inside, cwd=folder / "disk", stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, name, flush=True)
sys.stdin.read()
"""


def loop_devices(folder: Path) -> list[str]:
    """Return the files below the folder that loop devices have."""
    found = (each.read_text().strip() for each in Path("/sys/block").glob("loop*/loop/backing_file"))
    return [file for file in found if file.startswith(f"{folder}/")]


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(leftovers, "RECORDS", tmp_path / "records")
    return tmp_path / "records"


def test_mounts_loop_devices_namespaces_and_processes_of_a_killed_run_are_removed(
    tmp_path: Path, records: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    variables = {name: value for name, value in os.environ.items() if name != leftovers.RUN}
    command = [sys.executable, "-c", RUN, str(records), str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=variables, text=True
    ) as run:
        assert run.stdout is not None
        process_id, namespace = run.stdout.readline().split()
        assert len(mounts_below(folder)) == 2 and loop_devices(folder) == [str(folder / "image")]
        assert leftovers.remove_leftovers() == [], "it is alive"
        assert len(mounts_below(folder)) == 2 and Path("/proc", process_id).exists()
        run.send_signal(signal.SIGKILL)
        run.wait()
    assert leftovers.remove_leftovers() == [folder]
    assert mounts_below(folder) == []
    assert not Path("/run/netns", namespace).exists()
    wait_until(lambda: not Path("/proc", process_id).exists() and not loop_devices(folder))


def test_the_folder_of_this_run_is_recorded(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert tmp_path_factory.getbasetemp().resolve() in leftovers._held
