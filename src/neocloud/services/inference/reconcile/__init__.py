"""The reconcilers of models and deployments."""

from collections.abc import Sequence

from neocloud.core.reconcile.reconciler import AnyReconciler
from neocloud.core.service import Dependencies
from neocloud.services.inference.reconcile.deployment import DeploymentReconciler
from neocloud.services.inference.reconcile.model import ModelReconciler

__all__ = ["DeploymentReconciler", "ModelReconciler", "reconcilers"]


def reconcilers(dependencies: Dependencies) -> Sequence[AnyReconciler]:
    return (ModelReconciler.of(dependencies), DeploymentReconciler.of(dependencies))
