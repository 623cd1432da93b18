"""How a cluster becomes true. `cluster` holds the steps; the others what the steps are made of."""

from neocloud.services.slurm.reconcile.cluster import ClusterReconciler

__all__ = ["ClusterReconciler"]
