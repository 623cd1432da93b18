"""The placements there are, by whether replicas are jobs of a Slurm cluster. Made here alone."""

import functools
from collections.abc import Mapping

from neocloud.core.service import Dependencies
from neocloud.services.inference.reconcile.placement import Placement
from neocloud.services.inference.reconcile.pods import PodPlacement
from neocloud.services.inference.reconcile.slurm_replicas import SlurmPlacement
from neocloud.services.inference.resources import ModelFolders
from neocloud.services.slurm.public import BatchJobs


def placements(dependencies: Dependencies) -> Mapping[bool, Placement]:
    # Read once: the engine of pods gets images when the cloud starts.
    image = functools.cache(lambda: dependencies.settings.image("jail"))
    domains = dependencies.settings.media_domains
    folders, home = dependencies.provided.get(ModelFolders), dependencies.settings.home
    pods = PodPlacement(dependencies.engine, folders, image, domains)
    jobs = dependencies.provided.find(BatchJobs)
    if jobs is None:
        return {False: pods}
    return {False: pods, True: SlurmPlacement(jobs, dependencies.store, folders, home, media_domains=domains)}
