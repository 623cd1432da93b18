"""`neo compute`: derived from the contract, plus hand-written commands for instances."""

from neocloud.cli.commands.compute import instance
from neocloud.cli.resources.commands import product_app

app = product_app(
    "compute",
    "Virtual machines, their disks and images, and shared file systems.",
    "neo compute instance create web --public-ip",
    "neo compute instance ssh web",
    "neo compute disk create --name data --size-gibibytes 20 --type NETWORK_SSD",
    "neo compute platform list",
)
instance.add_to(app)
