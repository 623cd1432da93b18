"""`neo vpc`: derived from the contract."""

from neocloud.cli.resources.commands import product_app

app = product_app(
    "vpc",
    "Networks, subnets, addresses, routes and security groups.",
    "neo vpc subnet list",
    "neo vpc network create --name lab",
    "neo vpc allocation list",
    "neo vpc security-rule list --parent-id vpcsecuritygroup-e00abc",
)
