"""Tuning: jobs that train a model on a file of conversations."""

from neocloud.core.service import Service
from neocloud.services.tuning.api import KINDS, METHODS
from neocloud.services.tuning.meter import FineTuningJobMeter
from neocloud.services.tuning.public import Files
from neocloud.services.tuning.reconcile import reconcilers
from neocloud.services.tuning.rules.job import CAPACITY

SERVICE = Service(
    name="tuning",
    kinds=KINDS,
    methods=METHODS,
    reconcilers=reconcilers,
    capacity=CAPACITY,
    meters=(FineTuningJobMeter(),),
)

__all__ = ["SERVICE", "Files"]
