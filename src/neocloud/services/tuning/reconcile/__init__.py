"""How a job becomes true. `job` holds the steps; the others what the steps are made of."""

from collections.abc import Sequence

from neocloud.core.service import Dependencies
from neocloud.services.tuning.reconcile.job import FineTuningJobReconciler


def reconcilers(dependencies: Dependencies) -> Sequence[FineTuningJobReconciler]:
    return (FineTuningJobReconciler(dependencies),)


__all__ = ["reconcilers"]
