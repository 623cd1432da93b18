"""Compute: the platforms this cloud has, and filesystems."""

from neocloud.core.service import Kind, Service
from neocloud.services.compute.api import METHODS
from neocloud.services.compute.meter import FilesystemMeter
from neocloud.services.compute.reconcile import FilesystemReconciler
from neocloud.services.compute.resources import FILESYSTEM, FILESYSTEM_ID_PREFIX, FilesystemState
from neocloud.services.compute.rules import FilesystemRules

SERVICE = Service(
    name="compute",
    kinds=(
        Kind(
            message=FILESYSTEM,
            rpc="nebius.compute.v1.FilesystemService",
            id_prefix=FILESYSTEM_ID_PREFIX,
            permission="compute.filesystems",
            parent_kinds=("nebius.iam.v1.Container",),
            rules=FilesystemRules(),
            initial_state=FilesystemState.CREATING,
            is_reconciled=True,
        ),
    ),
    methods=METHODS,
    reconcilers=lambda dependencies: (FilesystemReconciler(dependencies.engine),),
    meters=(FilesystemMeter(),),
)
