"""The placements there are, by whether replicas are jobs of a Slurm cluster. Made here alone."""

import functools
from collections.abc import Mapping

from neocloud.core.service import Dependencies
from neocloud.services.inference.reconcile.placement import Placement
from neocloud.services.inference.reconcile.pods import PodPlacement
from neocloud.services.inference.reconcile.slurm_replicas import SlurmPlacement
from neocloud.services.inference.resources import MODEL_FOLDERS
from neocloud.services.slurm.resources import BATCH_JOBS, BatchJobs


def placements(dependencies: Dependencies) -> Mapping[bool, Placement]:
    # Read once: the engine of pods gets images when the cloud starts.
    image = functools.cache(lambda: dependencies.settings.image("jail"))
    domains = dependencies.settings.media_domains
    pods = PodPlacement(dependencies.engine, dependencies.extras[MODEL_FOLDERS], image, domains)
    if BATCH_JOBS not in dependencies.extras:
        return {False: pods}
    jobs: BatchJobs = dependencies.extras[BATCH_JOBS](dependencies)
    folders, home = dependencies.extras[MODEL_FOLDERS], dependencies.settings.home
    return {False: pods, True: SlurmPlacement(jobs, dependencies.store, folders, home, media_domains=domains)}
