"""The estimated cost of a resource by the price list of its cloud, before it is created; and trials of
requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from google.protobuf.message import Message

from neocloud.cli.output import Format, JsonObject, fields_table, print_view, say, show
from neocloud.cli.resources.names import names_by_id
from neocloud.cli.resources.pages import page
from neocloud.cli.terminal import echo
from neocloud.client.connection import Client
from neocloud.client.errors import ClientError
from neocloud.core import contract

ESTIMATE = "nebius.billing.v1.CalculatorService/EstimateBatch"
TRY = "neocloud.common.v1.TrialService/TryCreate"
UNITS = ("hour", "month")
NO_PRICE = "no price"
DECIMALS = 6


@dataclass(frozen=True)
class Price:
    """Amounts in the currency of the price list, as text; `NO_PRICE` with the reason where there is none."""

    hour: str
    month: str
    currency: str = ""
    reason: str = ""

    @property
    def is_known(self) -> bool:
        return self.hour != NO_PRICE

    def text(self) -> str:
        if not self.is_known:
            return f"{NO_PRICE}: {self.reason}" if self.reason else NO_PRICE
        hour, month = (f"{_rounded(amount)} {self.currency}" for amount in (self.hour, self.month))
        return f"{hour} an hour, {month} a month of 730 hours"

    def document(self) -> JsonObject:
        if not self.is_known:
            return {"hour": None, "month": None, "reason": self.reason}
        return {"hour": self.hour, "month": self.month, "currency": self.currency}


def _rounded(amount: str) -> str:
    """Return an exact amount with the digits that are of use to people."""
    try:
        number = round(Decimal(amount), DECIMALS)
    except InvalidOperation:
        return amount
    return f"{number:f}".rstrip("0").rstrip(".") if "." in f"{number:f}" else f"{number:f}"


WITHOUT_PRICE = ("INVALID_ARGUMENT", "UNIMPLEMENTED", "PERMISSION_DENIED")
"""It has none, the cloud has no calculator, or the caller may not ask it."""


def estimate(client: Client, message: str, content: Mapping[str, Any]) -> Price:
    """Return the price of what this request would create. Raises ClientError if it cannot be asked for."""
    return estimate_of(client, contract.from_dict(contract.message(message), {**content}))


def estimate_of(client: Client, request: Message) -> Price:
    asked = contract.method(ESTIMATE).input()
    asked.resource_specs.add(spec=contract.pack(request))
    try:
        answer = client.call(ESTIMATE, asked)
    except ClientError as error:
        if error.code not in WITHOUT_PRICE:
            raise
        reasons = [why for _, why in error.violations]
        return Price(NO_PRICE, NO_PRICE, reason="; ".join(reasons) or error.message)
    costs = {each.aggregation_unit.unit: each.general.total.cost for each in answer.total_costs}
    hour, month = (costs.get(unit, NO_PRICE) for unit in UNITS)
    return Price(hour, month, answer.currency)


def tried(client: Client, path: str, request: JsonObject, assumed: Sequence[str] = ()) -> Any:
    """Return the resource that a request to create would make, with defaults. Raises ClientError as it would.

    `assumed`: paths of fields that are filled later, and are not looked at.
    """
    rpc = contract.method(path)
    packed = contract.pack(contract.from_dict(rpc.input, request))
    trial = contract.method(TRY).input(request=packed, assumed_fields=assumed)
    return contract.unpack(client.call(TRY, trial).resource)


def cost_of(price: Price, hours: float) -> str | None:
    """Return the cost of some hours, rounded; None without a price."""
    try:
        return _rounded(str(Decimal(price.hour) * Decimal(hours)))
    except InvalidOperation:
        return None


def show_trial(client: Client, path: str, request: JsonObject, output: Format) -> None:
    """Try a request to create, and print what it would create and cost."""
    resource = tried(client, path, request)
    show_tried(client, resource, price_of(client, path, resource), output)


def price_of(client: Client, path: str, resource: Any) -> Price:
    """Return the price of a resource that a request would create."""
    return estimate_of(client, contract.method(path).input(metadata=resource.metadata, spec=resource.spec))


def show_tried(
    client: Client, resource: Any, price: Price, output: Format, more: JsonObject | None = None
) -> None:
    """Print what a request would create and cost; `more` is added to documents for programs."""
    if output is not Format.TABLE:
        document = {"resource": contract.to_document(resource), "price": price.document(), **(more or {})}
        show(output, document, fields_table(()))
        return
    view = page(resource, names_by_id(client, resource))
    print_view(view)
    echo()
    echo(f"Costs {price.text()}." if price.is_known else f"It has {price.text()}.")
    say("This was a trial: nothing was created. Leave out --dry-run to create it.")
