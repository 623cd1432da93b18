"""The port of the host for ssh to a login node, and the addresses of the host that have it.

The port of a cluster stays the same, while the operator may add addresses. Another program may have the port
on a new address, or the host may lose an address. Then the login node is started without that address, and a
condition of the cluster says so. The address is tried again when the login node is started the next time.

Loopback is never left out: every host has it, and `neo slurm cluster ssh` on this one uses it. While the port
is taken there, the start is repeated: mostly the monitor of the login node before still holds it.
"""

import errno
import socket
from collections.abc import Sequence

from neocloud.core.reconcile.reconciler import Context, RetryLater
from neocloud.engines.base import Observation, PodPhase
from neocloud.services.slurm.rules import LoginPorts
from neocloud.settings.settings import LOOPBACK

FAILURES_BEFORE_CLOSING = 2
"""So many starts of a login node must fail: the monitor of the one before may still hold the port."""


def free_port(ports: LoginPorts, addresses: Sequence[str]) -> int:
    """Return a port that is free on all these addresses."""
    for port in ports.all():
        if all(_error(address, port) != errno.EADDRINUSE for address in addresses):
            return port
    raise RetryLater(f"no port from {ports} is free for ssh; the operator sets the range", delay_seconds=10)


def is_running(observation: Observation, pod_name: str) -> bool:
    """Return whether the pod that has the port runs, and holds the port itself."""
    pod = observation.pod(pod_name)
    return pod is not None and pod.phase is PodPhase.RUNNING


class ClosedAddresses:
    """The addresses that the login nodes of clusters go without, kept over restarts of the server."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}

    async def of(
        self, context: Context, port: int, wanted: Sequence[str], *, is_running: bool
    ) -> Sequence[str]:
        """Return the addresses, of those `wanted`, that a cluster's login node is started without.

        Without a running login node they are tried again.
        """
        space = _space(context)
        held = [
            value
            for value, holder in (await context.reservations(space)).items()
            if holder == context.resource.id
        ]
        closed = [address for value in held for address in value.split(",")]
        left = [each for each in closed if each in wanted and (is_running or _error(each, port))]
        if left != closed:
            await self._keep(context, left, held)
        return left

    def note_start(self, cluster_id: str) -> None:
        self._failures.pop(cluster_id, None)

    async def note_failure(
        self, context: Context, addresses: Sequence[str], port: int, closed: Sequence[str]
    ) -> bool:
        """Note that the login node did not start; return whether it may start with fewer addresses."""
        failures = self._failures.pop(context.resource.id, 0) + 1
        found = [address for address in addresses if _error(address, port)]
        if not found or LOOPBACK in found or len(found) == len(addresses):
            return False
        if failures < FAILURES_BEFORE_CLOSING:
            self._failures[context.resource.id] = failures
            return False
        await self._keep(context, [*closed, *found], [",".join(closed)] if closed else [])
        return True

    async def _keep(self, context: Context, closed: Sequence[str], held: Sequence[str]) -> None:
        for value in held:
            await context.release(_space(context), value)
        if closed:
            await context.reserve(_space(context), [",".join(closed)])


def closed_message(closed: Sequence[str], port: int) -> str:
    """Return what to tell users about addresses on which the login node is not reached."""
    return (
        f"ssh is not open everywhere: {'; '.join(_why(address, port) for address in closed)}."
        " Change that, then run `neo down` and `neo up`"
    )


def _why(address: str, port: int) -> str:
    error = _error(address, port)
    if error == errno.EADDRNOTAVAIL:
        return f"the host does not have {address}"
    return f"another program {'has' if error else 'had'} port {port} on {address}"


def _space(context: Context) -> str:
    return f"slurm.login.closed:{context.resource.id}"


def _error(address: str, port: int) -> int:
    """Return the error number of listening there; 0 if it works."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen()
        except OSError as error:
            return error.errno or errno.EINVAL
    return 0
