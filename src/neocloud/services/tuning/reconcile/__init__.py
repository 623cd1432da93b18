"""From desired to observed state: `job` holds the steps, the other modules the parts of the steps."""

from collections.abc import Sequence

from neocloud.core.service import Dependencies
from neocloud.services.tuning.reconcile.job import FineTuningJobReconciler


def reconcilers(dependencies: Dependencies) -> Sequence[FineTuningJobReconciler]:
    return (FineTuningJobReconciler(dependencies),)


__all__ = ["reconcilers"]
