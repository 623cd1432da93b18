"""`neo iam`: derived from the contract."""

from neocloud.cli.resources.commands import product_app

app = product_app("iam", "Projects, service accounts, groups and who may do what.")
