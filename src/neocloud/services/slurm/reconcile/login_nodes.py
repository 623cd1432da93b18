"""The login nodes of a cluster: which have no sessions any more after they were drained."""

from neocloud.engines.base import EngineError
from neocloud.services.slurm.access import SlurmAccess
from neocloud.services.slurm.reconcile.scope import ClusterScope
from neocloud.services.slurm.render import SSH_PORT

COUNT_SESSIONS = ("cat", "/proc/net/tcp", "/proc/net/tcp6")
ESTABLISHED = "01"


async def count_sessions(access: SlurmAccess, scope: ClusterScope) -> None:
    """Count the sessions on drained login nodes, for the status. The program is the tenant's own, so nothing
    but what people are shown depends on the number."""
    for name in scope.drained_login_nodes:
        try:
            result = await access.run_in_shared_root(scope.cluster_id, name, COUNT_SESSIONS)
        except EngineError:
            continue  # it does not run: the status says so
        scope.sessions[name] = sessions_in(result.stdout.decode(errors="replace"))


def sessions_in(table: str) -> int:
    """Return the number of open connections to sshd in the kernel's table of TCP connections; -1 if it is
    none."""
    if "local_address" not in table:
        return -1
    rows = (line.split() for line in table.splitlines())
    return sum(
        len(row) > 3 and row[3] == ESTABLISHED and row[1].rpartition(":")[2] == f"{SSH_PORT:04X}"
        for row in rows
    )
