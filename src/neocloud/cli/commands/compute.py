"""`neo compute`: derived from the contract."""

from neocloud.cli.resources.commands import product_app

app = product_app("compute", "Platforms to choose from, and shared file systems.")
