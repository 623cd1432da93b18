"""`neo inference`: derived from the contract; `neo model`, `neo deploy` and `neo deployment` are
hand-written for everyday use."""

from neocloud.cli.resources.commands import product_app

app = product_app(
    "inference",
    "Models, the deployments that serve them, and token budgets.",
    "neo inference model list",
    "neo inference deployment update inferencedeployment-e00abc --max-adapters 4",
    "neo inference budget create --name monthly --monthly-limit 250.00",
)
