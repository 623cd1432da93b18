"""Under which host names clients look for the services of the contract.

A client puts a service's name before the domain it was given: `compute` and `api.example.com` make
`compute.api.example.com`. The names differ in depth, so one wildcard certificate does not cover them.
"""

from functools import cache
from typing import Any

from neocloud.core.contract.registry import message, pool, services


@cache
def api_host_names() -> tuple[str, ...]:
    """One name for each group of services, sorted.

    It is what the contract's `api_service_name` says, else the second part of the package.
    """
    return tuple(sorted({_host_name(service) for service in services()}))


def _host_name(service: str) -> str:
    descriptor: Any = pool().FindServiceByName(service)
    options = message("google.protobuf.ServiceOptions").FromString(
        descriptor.GetOptions().SerializeToString()
    )
    extension = pool().FindExtensionByName("nebius.api_service_name")
    return options.Extensions[extension] or service.split(".")[1]
