"""`neo registry`: registries of container images, and how container clients sign in to them."""

import shutil
from subprocess import DEVNULL, run
from typing import Annotated
from urllib.parse import urlsplit

import typer

from neocloud.cli.output import say
from neocloud.cli.resources.commands import product_app
from neocloud.cli.resources.lookup import ProjectOption, connect_to_project
from neocloud.client.errors import ClientError

CLIENTS = ("podman", "docker", "skopeo")
TOKEN_USER = "iam"
"""The user whose password is an access token."""

app = product_app("registry")


def login(
    context: typer.Context,
    client: Annotated[
        str,
        typer.Option(
            help=f"Program that signs in: {', '.join(CLIENTS)}. Default: the first that is installed."
        ),
    ] = "",
    project: ProjectOption = "",
) -> None:
    """Sign podman, docker or skopeo in to the registries of this cloud, as the account of your profile.

    The program gets an access token on its standard input, which is valid for an hour at most; then sign in
    again. Your roles decide what you may pull and push. Programs that stay signed in use an access key
    of a service account.

    Examples:

      neo registry login
      neo registry login --client docker
    """
    from neocloud.cli.storage.service import endpoint_of, issue_key  # noqa: PLC0415  botocore

    program = _program(client)
    cloud = connect_to_project(context, project)
    url = urlsplit(endpoint_of(issue_key(cloud.client, cloud.project), cloud.profile, cloud.client.endpoint))
    command = [program, "login", "--username", TOKEN_USER, "--password-stdin"]
    if url.scheme == "http" and program != "docker":  # docker takes plain HTTP of this machine by itself
        command.append("--tls-verify=false")
    token = cloud.client.tokens.token()
    ran = run([*command, url.netloc], input=token, text=True, stdout=DEVNULL, check=False)
    if ran.returncode:
        raise ClientError(
            "UNKNOWN",
            f"{program} could not sign in to {url.netloc}",
            f"By hand: neo session token | {' '.join(command)} {url.netloc}",
        )
    say(f"{program} is signed in to {url.netloc}. Names of images begin with it: neo registry registry list")


def _program(named: str) -> str:
    if named and named not in CLIENTS:
        raise ClientError("INVALID_ARGUMENT", f"--client: {named!r} is none of {', '.join(CLIENTS)}")
    found = next((each for each in ((named,) if named else CLIENTS) if shutil.which(each)), None)
    if found is None:
        step = "Install one, or sign another program in as the user iam with `neo session token`"
        raise ClientError("NOT_FOUND", f"{named or ' and '.join(CLIENTS)}: not on this machine's PATH", step)
    return found


app.command("login")(login)
