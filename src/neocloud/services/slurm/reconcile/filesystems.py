"""The filesystems of users that a cluster mounts: they must be ready before a pod starts."""

from neocloud.core.reconcile.reconciler import CHILD_POLL_SECONDS, Failed, RetryLater
from neocloud.services.compute.public import claim_reference
from neocloud.services.compute.types import FilesystemState
from neocloud.services.slurm.reconcile.scope import Scope
from neocloud.services.slurm.render import MountView
from neocloud.services.slurm.types import Reason

_USABLE = frozenset({FilesystemState.READY, FilesystemState.UPDATING})


async def find_filesystems(scope: Scope) -> None:
    """Set the scope's mounts."""
    found = []
    for mounted in scope.cluster.spec.filesystems:
        row = await scope.context.get(mounted.filesystem_id)
        if row is None or row.state == FilesystemState.ERROR:
            raise Failed(
                Reason.FILESYSTEM_FAILED,
                f"Filesystem {mounted.filesystem_id} is gone or has failed; take it out of spec.filesystems.",
            )
        if row.state not in _USABLE:
            raise RetryLater(
                f"filesystem {row.name or row.id} is {row.state}", delay_seconds=CHILD_POLL_SECONDS
            )
        found.append(MountView(claim_reference(row), mounted.mount_path))
    scope.mounts = tuple(found)
