"""`neo deploy`: see `inference.deploy`."""

from neocloud.cli.commands.inference.deploy import app

__all__ = ["app"]
