"""`neo model`: see `inference.model`."""

from neocloud.cli.commands.inference.model import app

__all__ = ["app"]
