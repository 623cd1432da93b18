"""`neo ai`: derived from the contract."""

from neocloud.cli.resources.commands import product_app

app = product_app(
    "ai",
    "Container images run as endpoints and jobs. Endpoints run until they are stopped, jobs until they end.",
    "neo ai endpoint list",
    "neo ai endpoint create --file endpoint.yaml",
    "neo ai job list",
)
