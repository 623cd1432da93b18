"""`neo login`: make a profile from a credentials file, or by signing in as a person."""

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
    email: Annotated[str, typer.Argument(help="Your e-mail address, to sign in with a password.")] = "",
    credentials: Annotated[
        Path | None, typer.Option(help="Credentials file of a service account (JSON).")
    ] = None,
    oidc: Annotated[str, typer.Option(help="Id of an OIDC federation: sign in in the browser.")] = "",
    invitation: Annotated[str, typer.Option(help="Code of an invitation; you choose a password.")] = "",
    code: Annotated[str, typer.Option(help="Present code of your authenticator app.")] = "",
    password_stdin: Annotated[bool, typer.Option(help="Read the password from standard input.")] = False,
    endpoint: Annotated[
        str, typer.Option(help="host:port of the gRPC API. Default: as the file or the profile says.")
    ] = "",
    ca_file: Annotated[str, typer.Option(help="Certificates to trust, where the API speaks TLS.")] = "",
    callback_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port for the browser's answer; 0: any free.")
    ] = 0,
    name: Annotated[str, typer.Option(help="Name of the new profile. Default: default, or you.")] = "",
    tenant: Annotated[str, typer.Option(help="Tenant id. Default: the account's own.")] = "",
    project: Annotated[str, typer.Option(help="Project to work in. Default: a default project.")] = "",
) -> None:
    """Sign in, as a person or with a service account's credentials file.

    What was given is tried before the profile is written. `neo up` makes a profile by itself for a cloud on
    this machine. A session lasts as long as it is used every two weeks, 90 days at most; `neo logout` ends
    it.

    Examples:

      neo login alice@bank.example
      neo login --oidc oidcfederation-e00abc            # in the browser
      neo login --invitation CODE --endpoint cloud.example:7370 --ca-file ca.pem
      neo login --credentials /var/lib/neocloud/credentials.json
    """
    if sum(map(bool, (email, credentials, oidc, invitation))) != 1:
        raise ClientError(
            "INVALID_ARGUMENT",
            "It is not clear how to sign in",
            "Give one of: an e-mail address, --oidc, --invitation, --credentials",
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
    echo(f"Signed in. {profile.name} is the current profile now.")
    if os.environ.get("NEOCLOUD_HOME"):
        warn(f"NEOCLOUD_HOME is set and goes before it. Unset it, or use `neo --profile {profile.name}`.")
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
            "INVALID_ARGUMENT", f"{credentials} does not say where the cloud is", "Add --endpoint host:port"
        )
    with connect_as(found, endpoint) as client:
        account = client.call("nebius.iam.v1.ProfileService/Get").service_account_profile.info
        place = account.metadata.parent_id
        if not place.startswith("project-"):  # The operator's account lies in its tenant.
            place = project or found.project_id or signing_in.default_project(client, place)
    return Profile(
        name=name,
        endpoint=endpoint,
        credentials_file=str(credentials.absolute()),
        tenant_id=tenant or found.tenant_id,
        project_id=project or found.project_id or place,
    )
