"""Slurm writes the output of services' jobs, as root, to no folder that users may write to."""

from pathlib import PurePosixPath

from neocloud.services.compute.public import platforms, preset
from neocloud.services.inference.reconcile.slurm_job import SlurmResources, new_job
from neocloud.services.tuning.render import batch_job


def test_only_root_writes_to_the_folder_of_the_output() -> None:
    name = next(iter(platforms()))
    shape = preset(name, next(iter(platforms()[name].presets)))
    jobs = (
        new_job("inferencedep-a", "replica-0", (), SlurmResources(), {}),
        batch_job("finetuningjob-a", 1, 1, shape),
    )
    for job in jobs:
        (output,) = (each.partition("=")[2] for each in job.options if each.startswith("--output="))
        assert PurePosixPath(output).parent == PurePosixPath("/root")
