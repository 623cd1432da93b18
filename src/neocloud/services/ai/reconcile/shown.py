"""What an endpoint's and a job's status have alike. Pure."""

from typing import Any

from neocloud.services.ai.reconcile.scope import WorkloadScope


def show_addresses(status: Any, scope: WorkloadScope, state: str) -> None:
    """Its one instance, and where its ports are reached. What was shown stays while nothing new is known."""
    view = scope.interface
    if view is not None:
        for field, address in (
            ("private_endpoints", view.address),
            ("public_endpoints", view.public_address),
        ):
            shown = getattr(status, field)
            del shown[:]
            if address:
                shown.extend(f"{address}:{port.container_port}" for port in scope.spec.ports)
        del status.instances[:]
        status.instances.add(private_ip=view.address, public_ip=view.public_address)
    for instance in status.instances:
        instance.state = instance.State.Value(state)


def show_details(status: Any, code: str, message: str) -> None:
    status.ClearField("state_details")
    if code or message:
        status.state_details.code, status.state_details.message = code, message
