"""Calls any method of the published API through the official SDK's own generated clients, and notes which.

api = SdkCalls(sdk)
disk = await api("nebius.compute.v1.DiskService/Get", id="computedisk-...")
"""

import importlib
import re
from typing import Any

from nebius.aio.operation import Operation
from nebius.sdk import SDK

from neocloud.core import contract

POLL_SECONDS = 0.05


class SdkCalls:
    def __init__(self, sdk: SDK) -> None:
        self._sdk = sdk
        self.answered: set[str] = set()
        """Methods that answered without an error."""

    async def __call__(self, path: str, **fields: Any) -> Any:
        """The method's answer; an operation is waited for until it has succeeded."""
        rpc = contract.method(path)
        package, service = rpc.service.rpartition(".")[::2]
        client = getattr(importlib.import_module(f"nebius.api.{package}"), f"{service}Client")(self._sdk)
        request = sdk_message(rpc.input.DESCRIPTOR.full_name)(**fields)
        answer = await getattr(client, snake_case(rpc.name))(request)
        if isinstance(answer, Operation):
            await answer.wait(interval=POLL_SECONDS)
            assert answer.successful(), f"{path}: {answer.status()}"
        self.answered.add(path)
        return answer


def sdk_message(full_name: str) -> Any:
    """The SDK's class of a message: `sdk_message("nebius.compute.v1.DiskSpec")`."""
    package, name = full_name.rpartition(".")[::2]
    return getattr(importlib.import_module(f"nebius.api.{package}"), name)


def snake_case(name: str) -> str:
    """Return the name as the SDK's generator writes it: `ListInstancesByNVLInstanceGroup` keeps its
    abbreviation together.
    """
    words = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", words).lower()
