"""What a resource would cost, from the price list of its cloud, before it is created."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from neocloud.client.connection import Client
from neocloud.core import contract

ESTIMATE = "nebius.billing.v1alpha1.CalculatorService/EstimateBatch"


@dataclass(frozen=True)
class Price:
    """Amounts in the currency of the price list, as text."""

    hour: str
    month: str

    def text(self) -> str:
        return f"{self.hour} USD an hour, {self.month} USD a month of 730 hours"


def estimate(client: Client, requests: Iterable[tuple[str, Mapping[str, Any]]]) -> Price:
    """Return the price of what these requests would create: the name of each message, and its fields.

    Raises ClientError for what the price list does not charge by the hour.
    """
    request = contract.method(ESTIMATE).input()
    fields = {
        field.message_type.full_name: field.name
        for field in request.resource_specs.add().DESCRIPTOR.fields
        if field.message_type is not None
    }
    del request.resource_specs[:]
    for name, content in requests:
        wanted = contract.from_dict(contract.message(name), {**content})
        getattr(request.resource_specs.add(), fields[name]).CopyFrom(wanted)
    answer = client.call(ESTIMATE, request)
    return Price(answer.hourly_cost.general.total.cost, answer.monthly_cost.general.total.cost)
