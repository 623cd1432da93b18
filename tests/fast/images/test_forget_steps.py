"""Remains of ended steps on a worker are removed at its next start, and nothing else of slurmd's folder."""

import subprocess
from pathlib import Path

from tests.fast.images.test_agreement import ENTRYPOINT, INSIDE

PROGRAM = INSIDE / "usr/local/lib/neocloud/forget-steps"


def test_only_what_steps_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "pmix.4.1").mkdir()
    (tmp_path / "pmix.4.1" / "file").touch()
    for name in ("stepd.slurm.pmix.4.1", "cred_state", "hwloc_topo_whole.xml"):
        (tmp_path / name).touch()
    for _ in range(2):  # the second time there is nothing
        subprocess.run([PROGRAM, tmp_path], check=True)
        assert {each.name for each in tmp_path.iterdir()} == {"cred_state", "hwloc_topo_whole.xml"}


def test_it_runs_before_slurmd() -> None:
    start = ENTRYPOINT.partition("start_worker() {")[2]
    assert -1 < start.find('"$lib/forget-steps" /var/spool/slurmd') < start.find('"$lib/serve-jobs"')
