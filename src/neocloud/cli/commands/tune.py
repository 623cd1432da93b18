"""`neo tune`: see `tuning.tune`."""

from neocloud.cli.commands.tuning.tune import app

__all__ = ["app"]
