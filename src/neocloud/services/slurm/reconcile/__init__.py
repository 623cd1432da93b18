"""Reconcile clusters: `cluster` holds the steps, the other modules their parts."""

from neocloud.services.slurm.reconcile.cluster import ClusterReconciler

__all__ = ["ClusterReconciler"]
