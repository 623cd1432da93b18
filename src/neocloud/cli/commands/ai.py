"""`neo ai`: derived from the contract."""

from neocloud.cli.resources.commands import product_app

app = product_app(
    "ai",
    "Container images, run on a network: endpoints until they are stopped, jobs to their end.",
    "neo ai endpoint list",
    "neo ai endpoint create --file endpoint.yaml",
    "neo ai job list",
)
