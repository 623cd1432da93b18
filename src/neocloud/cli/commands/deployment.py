"""`neo deployment`: see `inference.deployment`."""

from neocloud.cli.commands.inference.deployment import app

__all__ = ["app"]
