"""`neo inference`: derived from the contract. People mostly use `neo model`, `neo deploy` and `neo
deployment`."""

from neocloud.cli.resources.commands import product_app

app = product_app(
    "inference",
    "Models, the deployments that serve them, and budgets for their tokens.",
    "neo inference model list",
    "neo inference deployment update inferencedeployment-e00abc --max-adapters 4",
    "neo inference budget create --name monthly --monthly-limit 250.00",
)
