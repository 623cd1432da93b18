"""The gateway that a command talks to: the profile's own, or another OpenAI-compatible API."""

import typer

from neocloud.cli.target import profile_of
from neocloud.client.gateway import Gateway, open_api, open_gateway


def gateway_of(context: typer.Context, url: str = "", project: str = "") -> Gateway:
    """Open the profile's gateway, or another API with its key from the environment."""
    return open_api(url) if url else open_gateway(profile_of(context), project)
