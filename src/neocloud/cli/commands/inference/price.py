"""Token prices of deployments, and a warning where a budget cuts off those without a price."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.output import warn
from neocloud.cli.resources.lookup import DEPLOYMENTS, MODELS, ProjectClient, state_of
from neocloud.client.errors import ClientError
from neocloud.messages.neocloud.inference.v1 import DeploymentSpec

if TYPE_CHECKING:
    from neocloud.messages.neocloud.inference.v1 import Deployment

BUDGETS = "neocloud.inference.v1.BudgetService"
LIST_PRICES = "neocloud.billing.v1.TokenPriceService/List"
CHARGE = DeploymentSpec.Charge
FLAVOUR = DeploymentSpec.Flavour
HINT = "`neo deployment price NAME INPUT/OUTPUT` sets a price, or 0 if it is free"
_AMOUNT = r"\d{1,6}(\.\d{1,8})?"
_PRICE = re.compile(rf"(?P<input>{_AMOUNT})(/(?P<output>{_AMOUNT}))?")

PriceOption = Annotated[
    str,
    typer.Option(
        metavar="INPUT/OUTPUT",
        help="US dollars per million tokens, e.g. 0.10/0.40; 0 if it is free. Default: the price list's.",
    ),
]


def parsed_price(text: str, where: str) -> dict[str, str]:
    """Return the price in the contract's form; one number is the price of input and output."""
    match = _PRICE.fullmatch(text)
    if match is None:
        raise typer.BadParameter(
            f'"{text}" is not INPUT/OUTPUT in US dollars per million tokens; write 0.10/0.40, or 0',
            param_hint=where,
        )
    return {"input": match["input"], "output": match["output"] or match["input"]}


def is_cut_off(cloud: ProjectClient, model: str) -> bool:
    """Return whether calls of this model are refused: it has no price, and its project has a budget."""
    if model in _listed(cloud) or not has_budget(cloud):
        return False
    names = {item.metadata.id: item.metadata.name for item in optional_list(cloud, MODELS)}
    own = [item for item in optional_list(cloud, DEPLOYMENTS) if _called(item, names) == model]
    return not any(_has_own_price(item) for item in own)


def has_budget(cloud: ProjectClient) -> bool:
    """Return whether the project has a budget, so that calls of models without a price are refused."""
    return bool(list(optional_list(cloud, BUDGETS)))


def is_priced(cloud: ProjectClient, deployment: "Deployment", model: str) -> bool:
    """Return whether the deployment of this model has a price, its own or that of the price list."""
    return _has_own_price(deployment) or called_name(model, deployment) in _listed(cloud)


def called_name(model: str, deployment: "Deployment") -> str:
    """Return the name by which this deployment serves the model or adapter."""
    return f"{model}-fast" if FLAVOUR.Name(deployment.spec.flavour) == "FAST" else model


def callable_name(model: str, deployments: "Sequence[Deployment]") -> str:
    """Return the name by which one of the deployments answers for the model; a call wakes one asleep."""
    for each in deployments:
        name, status = called_name(model, each), each.status
        is_ready = any(replica.state == replica.READY for replica in status.replicas)
        if name in status.served_names and (is_ready or state_of(each) == "ASLEEP"):
            return name
    return ""


def warn_if_cut_off(cloud: ProjectClient, model: str) -> None:
    if is_cut_off(cloud, model):
        warn(f"{model} has no price, and this project has a budget, so calls of it are refused. {HINT}.")


def warn_of_unpriced(cloud: ProjectClient) -> None:
    """Warn of the deployments that the project's budget cuts off."""
    deployments = optional_list(cloud, DEPLOYMENTS)
    models = {model.metadata.id: model.metadata.name for model in optional_list(cloud, MODELS)}
    listed = _listed(cloud)
    names = sorted(
        item.metadata.name
        for item in deployments
        if not _has_own_price(item) and _called(item, models) not in listed
    )
    if names:
        warn(f"Calls of models without a price are refused from now on: {', '.join(names)}. {HINT}.")


def _has_own_price(deployment: "Deployment") -> bool:
    spec = deployment.spec
    return CHARGE.Name(spec.charge) == "BY_HOUR" or bool(spec.price.input or spec.price.output)


def _called(deployment: "Deployment", models: dict[str, str]) -> str:
    return called_name(models.get(deployment.spec.model_id, ""), deployment)


def _listed(cloud: ProjectClient) -> set[str]:
    """Return the names of the models in the price list."""
    try:
        return {item.model for item in cloud.client.call(LIST_PRICES, {}).items}
    except ClientError:
        return set()


def optional_list(cloud: ProjectClient, service: str) -> Iterable["Deployment"]:
    """Return the resources, or none if the caller may not list them: what needs them is an extra."""
    try:
        return cloud.list_all(service)
    except ClientError:
        return []
