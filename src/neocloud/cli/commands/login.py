"""`neo login`: create a profile from a credentials file, or by signing in as a person."""

import os
from pathlib import Path
from typing import Annotated

import typer

from neocloud.cli import signing_in
from neocloud.cli.lazy import command_group
from neocloud.cli.output import fields_table, print_view, warn
from neocloud.cli.terminal import echo
from neocloud.client.connection import connect, connect_as
from neocloud.client.credentials import read_credentials
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile, config_file, read_profiles, write_profiles

app = command_group()


@app.command()
def login(
    context: typer.Context,
    email: Annotated[str, typer.Argument(help="E-mail address, to sign in with a password.")] = "",
    credentials: Annotated[
        Path | None, typer.Option(help="Credentials file of a service account (JSON).")
    ] = None,
    oidc: Annotated[str, typer.Option(help="Id of an OIDC federation, to sign in with the browser.")] = "",
    invitation: Annotated[str, typer.Option(help="Invitation code; prompts for a new password.")] = "",
    code: Annotated[str, typer.Option(help="Current code of your authenticator app.")] = "",
    password_stdin: Annotated[bool, typer.Option(help="Read the password from standard input.")] = False,
    endpoint: Annotated[
        str,
        typer.Option(help="host:port of the gRPC API. Default: from the credentials file or the profile."),
    ] = "",
    ca_file: Annotated[str, typer.Option(help="File of certificates to trust, if the API uses TLS.")] = "",
    callback_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port for the browser's reply; 0: any free port.")
    ] = 0,
    name: Annotated[
        str, typer.Option(help="Name of the new profile. Default: `default`, or your account's name.")
    ] = "",
    tenant: Annotated[str, typer.Option(help="Tenant id. Default: the account's tenant.")] = "",
    project: Annotated[
        str, typer.Option(help="Id of the project to work in. Default: a default project.")
    ] = "",
) -> None:
    """Sign in as a person, or with a service account's credentials file.

    The profile is written only after signing in has succeeded. For a cloud on this machine `neo up` creates
    a profile. A session lasts as long as it is used every two weeks, up to 90 days; `neo logout` ends it.

    Examples:

      neo login alice@bank.example
      neo login --oidc oidcfederation-e00abc            # with the browser
      neo login --invitation CODE --endpoint cloud.example:7370 --ca-file ca.pem
      neo login --credentials /var/lib/neocloud/credentials.json
    """
    if sum(map(bool, (email, credentials, oidc, invitation))) != 1:
        raise ClientError(
            "INVALID_ARGUMENT",
            "The way to sign in is not clear",
            "Give exactly one of: an e-mail address, --oidc, --invitation, --credentials",
        )
    if credentials is not None:
        profile = _with_credentials(credentials, endpoint, name or "default", tenant, project)
    else:
        place = signing_in.place_of(context, endpoint, ca_file)
        if oidc:
            session = signing_in.in_browser(place, oidc, callback_port)
        elif invitation:
            session = signing_in.by_invitation(place, invitation, password_stdin)
        else:
            session = signing_in.by_password(place, email, code, tenant, password_stdin)
        profile = signing_in.make_profile(place, session, name or email.partition("@")[0] or "me", project)
    with connect(profile) as client:
        answer = client.call("nebius.iam.v1.ProfileService/Get")
    write_profiles(read_profiles(config_file()).with_profile(profile), config_file())
    echo(f"Signed in. {profile.name} is now the current profile.")
    if os.environ.get("NEOCLOUD_HOME"):
        warn(f"NEOCLOUD_HOME is set and takes precedence. Unset it, or use `neo --profile {profile.name}`.")
    print_view(
        fields_table(
            [
                ("  Account", signing_in.account_words(answer)),
                ("  API", profile.endpoint),
                ("  Project", profile.project_id),
            ]
        )
    )


def _with_credentials(credentials: Path, endpoint: str, name: str, tenant: str, project: str) -> Profile:
    found = read_credentials(credentials)
    endpoint = endpoint or found.endpoint
    if not endpoint:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{credentials} does not name the cloud's endpoint",
            "Add --endpoint host:port",
        )
    with connect_as(found, endpoint) as client:
        account = client.call("nebius.iam.v1.ProfileService/Get").service_account_profile.info
        place = account.metadata.parent_id
        if not place.startswith("project-"):  # The operator's account belongs to its tenant.
            place = project or found.project_id or signing_in.default_project(client, place)
    return Profile(
        name=name,
        endpoint=endpoint,
        credentials_file=str(credentials.absolute()),
        tenant_id=tenant or found.tenant_id,
        project_id=project or found.project_id or place,
    )
