"""Which gateway a command talks to: the profile's own, or the OpenAI-compatible API that was named."""

import typer

from neocloud.cli.target import profile_of
from neocloud.client.gateway import Gateway, open_api, open_gateway


def gateway_of(context: typer.Context, url: str = "", project: str = "") -> Gateway:
    """Another API than the profile's needs no profile, but a key in the environment."""
    return open_api(url) if url else open_gateway(profile_of(context), project)
