"""`neo compute`: derived from the contract, with the commands that people use for a machine beside them."""

from neocloud.cli.commands.compute import instance
from neocloud.cli.resources.commands import product_app

app = product_app("compute", "Virtual machines, their disks and images, and shared file systems.")
instance.add_to(app)
