"""`neo vpc`: derived from the contract."""

from neocloud.cli.resources.commands import product_app

app = product_app("vpc", "Networks, subnets, addresses, routes and security groups.")
