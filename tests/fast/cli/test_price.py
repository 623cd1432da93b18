"""A budget cuts off models without a price: `neo` says so before a call fails, and sets prices."""

import pytest

from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import PROJECT, FakeServer, operation

INFERENCE = "neocloud.inference.v1"
DEPLOYMENTS = f"{INFERENCE}.DeploymentService"
BUDGETS = f"{INFERENCE}.BudgetService"


def deployment(name: str, model_id: str, **spec: object) -> object:
    return contract.from_dict(
        contract.message(f"{INFERENCE}.Deployment"),
        {
            "metadata": {"id": f"inferencedeployment-e00{name}", "parent_id": PROJECT, "name": name},
            "spec": {"model_id": model_id, **spec},
        },
    )


def model(name: str) -> object:
    return contract.from_dict(
        contract.message(f"{INFERENCE}.Model"),
        {"metadata": {"id": f"inferencemodel-e00{name}", "parent_id": PROJECT, "name": name}},
    )


@pytest.fixture
def served(cloud: FakeServer) -> FakeServer:
    """Models with a price of their own, by the hour, in the price list, and without any."""
    models = [model(name) for name in ("own", "hourly", "listed", "bank")]
    items = [
        deployment("own", "inferencemodel-e00own", price={"input": "0", "output": "0"}),
        deployment("hourly", "inferencemodel-e00hourly", charge="BY_HOUR"),
        deployment("listed", "inferencemodel-e00listed"),
        deployment("bank", "inferencemodel-e00bank"),
    ]
    cloud.serve(f"{DEPLOYMENTS}/List", contract.method(f"{DEPLOYMENTS}/List").output(items=items))
    cloud.serve(f"{DEPLOYMENTS}/GetByName", items[-1])
    cloud.serve(f"{DEPLOYMENTS}/Get", items[-1])
    cloud.serve(f"{DEPLOYMENTS}/Create", operation("inferencedeployment-e00bank"))
    cloud.serve(f"{DEPLOYMENTS}/Update", operation("inferencedeployment-e00bank"))
    list_models = f"{INFERENCE}.ModelService/List"
    cloud.serve(list_models, contract.method(list_models).output(items=models))
    cloud.serve(f"{INFERENCE}.ModelService/GetByName", models[-1])
    prices = "neocloud.billing.v1.TokenPriceService/List"
    cloud.serve(prices, contract.method(prices).output(items=[{"model": "listed", "input": "0.1"}]))
    budget = contract.message(f"{INFERENCE}.Budget")()
    budget.metadata.id = "inferencebudget-e00monthly"
    cloud.serve(f"{BUDGETS}/Create", operation("inferencebudget-e00monthly"))
    cloud.serve(f"{BUDGETS}/Get", budget)
    cloud.serve(f"{BUDGETS}/List", contract.method(f"{BUDGETS}/List").output(items=[budget]))
    return cloud


def test_a_budget_names_the_deployments_that_it_cuts_off(signed_in: Neo, served: FakeServer) -> None:
    ran = signed_in("inference", "budget", "create", "monthly", "--monthly-limit", "250.00")
    assert ran.code == 0, ran.err
    assert "without a price are refused from now on: bank. `neo deployment price" in ran.err


def test_a_budget_over_priced_models_warns_of_nothing(signed_in: Neo, served: FakeServer) -> None:
    served.serve(f"{DEPLOYMENTS}/List", contract.method(f"{DEPLOYMENTS}/List").output())
    ran = signed_in("inference", "budget", "create", "--name", "monthly", "--monthly-limit", "250.00")
    assert ran.code == 0 and "Warning" not in ran.err


def test_deploy_takes_a_price_and_warns_without_one(signed_in: Neo, served: FakeServer) -> None:
    shape = ("--platform", "cpu-local", "--preset", "2vcpu-8gb", "--no-wait")
    ran = signed_in("deploy", "bank", *shape)
    assert ran.code == 0 and "bank has no price, and this project has a budget" in ran.err
    ran = signed_in("deploy", "bank", *shape, "--price", "0.10/0.40")
    assert ran.code == 0 and "has no price" not in ran.err
    price = served.asked(f"{DEPLOYMENTS}/Create")[-1].spec.price
    assert (price.input, price.output) == ("0.10", "0.40")
    assert signed_in("deploy", "bank", *shape, "--price", "cheap").code == 2


def test_the_price_of_a_deployment_can_be_changed(signed_in: Neo, served: FakeServer) -> None:
    ran = signed_in("deployment", "price", "bank", "0")
    assert ran.code == 0, ran.err
    price = served.asked(f"{DEPLOYMENTS}/Update")[-1].spec.price
    assert (price.input, price.output) == ("0", "0")
    assert "spec.price.cached_input" in served.headers(f"{DEPLOYMENTS}/Update")["x-resetmask"]
