"""`neo login`, `logout`, `whoami` and `session`: sign in and out, show the account and its sessions."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from neocloud.cli import sign_in
from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, OutputOption, fields_table, print_view, say, show, table, warn
from neocloud.cli.resources.lookup import (
    Connected,
    CurrentProfile,
    ProjectClient,
    id_of,
    project_id_of,
    tenant_id_of,
)
from neocloud.cli.resources.names import SERVICE_ACCOUNTS
from neocloud.cli.resources.people import user_id
from neocloud.cli.sign_in import format_account
from neocloud.cli.target import profile_of
from neocloud.cli.terminal import echo
from neocloud.client.connection import connect, connect_as, invoker, live_endpoint, open_channel
from neocloud.client.credentials import read_credentials
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile, config_file, read_profiles, write_profiles
from neocloud.client.sessions import forget_session, read_session, sign_out, write_session
from neocloud.client.trust import is_url
from neocloud.core import contract

login_app = command_group()


WhereArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[https://HOST:PORT] [EMAIL]",
        help="URL of a cloud on another machine, as its `neo status` shows it, and an e-mail address to sign"
        " in with a password.",
        show_default=False,
    ),
]
FingerprintOption = Annotated[
    str, typer.Option(help="SHA-256 fingerprint of the cloud's authority, instead of comparing it by eye.")
]
CredentialsOption = Annotated[Path | None, typer.Option(help="Credentials file of a service account (JSON).")]
OidcOption = Annotated[str, typer.Option(help="Id of an OIDC federation, to sign in with the browser.")]
InvitationOption = Annotated[str, typer.Option(help="Invitation code; prompts for a new password.")]
CodeOption = Annotated[str, typer.Option(help="Current code of your authenticator app.")]
PasswordStdinOption = Annotated[bool, typer.Option(help="Read the password from standard input.")]
EndpointOption = Annotated[
    str,
    typer.Option(help="host:port of the gRPC API. Default: from the credentials file or the profile."),
]
CaFileOption = Annotated[str, typer.Option(help="File of certificates to trust, if the API uses TLS.")]
CallbackPortOption = Annotated[
    int, typer.Option(min=0, max=65535, help="Port for the browser's reply; 0: any free port.")
]
NameOption = Annotated[
    str, typer.Option(help="Name of the new profile. Default: `default`, or your account's name.")
]
TenantOption = Annotated[
    str,
    typer.Option(
        help="Id or name of the tenant, where the e-mail address has accounts in several, or with"
        " --credentials. Default: the account's tenant."
    ),
]
ProjectOption = Annotated[
    str, typer.Option(help="Id or name of the project to work in. Default: a default project.")
]


@login_app.command()
def login(
    context: typer.Context,
    where: WhereArgument = None,
    credentials: CredentialsOption = None,
    oidc: OidcOption = "",
    invitation: InvitationOption = "",
    code: CodeOption = "",
    password_stdin: PasswordStdinOption = False,
    endpoint: EndpointOption = "",
    ca_file: CaFileOption = "",
    fingerprint: FingerprintOption = "",
    callback_port: CallbackPortOption = 0,
    name: NameOption = "",
    tenant: TenantOption = "",
    project: ProjectOption = "",
) -> None:
    """Sign in as a person, or with a service account's credentials file.

    The profile is written only after signing in has succeeded. For a cloud on this machine `neo up` creates
    a profile for the account that runs it; other accounts of the machine find the cloud that root runs. A
    session lasts as long as it is used every two weeks, up to 90 days; `neo logout` ends it.

    Examples:

      neo login alice@example.com
      neo login --oidc oidcfederation-e00abc            # with the browser
      neo login https://cloud.example:7374 alice@example.com
      neo login https://cloud.example:7374 --invitation CODE
      neo login --credentials /var/lib/neocloud/credentials.json
    """
    url, email = _url_and_email(where or ())
    _refuse_with_url(url, endpoint, fingerprint)
    _refuse_unclear_way(email, credentials, oidc, invitation, tenant)
    ca_file = str(Path(ca_file).absolute()) if ca_file else ""
    remote = sign_in.url_target(url, ca_file, fingerprint) if url else None
    session = None
    if credentials is not None:
        given = remote or sign_in.SignInTarget(endpoint, ca_file)
        profile = _with_credentials(credentials, given, name, tenant, project)
    else:
        target = remote or sign_in.sign_in_target(context, endpoint, ca_file)
        if oidc:
            session = sign_in.in_browser(target, oidc, callback_port)
        elif invitation:
            session = sign_in.by_invitation(target, invitation, password_stdin)
            email = sign_in.email_of(target, session)
        else:
            session = sign_in.by_password(target, email, code, tenant, password_stdin)
        name = name or _free_name(email.partition("@")[0] or "me", target.endpoint)
        profile = sign_in.make_profile(target, session, name, project)
    with sign_in.connect_with(session, profile) if session else connect(profile) as client:
        answer = client.call("nebius.iam.v1.ProfileService/Get")
        if project:
            profile = replace(profile, project_id=project_id_of(client, profile, project))
        elif session:
            profile = replace(profile, project_id=sign_in.default_project(client, profile.tenant_id))
    _keep(profile, session)
    _welcome(profile, sign_in.format_account(answer))


def _keep(profile: Profile, session: sign_in.Session | None) -> None:
    profiles = read_profiles(config_file()).with_profile(profile)
    if session:
        write_session(Path(profile.session_file), session)
    write_profiles(profiles, config_file())


def _refuse_with_url(url: str, endpoint: str, fingerprint: str) -> None:
    if url and endpoint:
        raise ClientError("INVALID_ARGUMENT", "--endpoint cannot be combined with a URL", "Drop one")
    if fingerprint and not url:
        raise ClientError(
            "INVALID_ARGUMENT", "--fingerprint needs the cloud's URL", "Add it: neo login https://HOST:PORT"
        )


def _refuse_unclear_way(
    email: str, credentials: Path | None, oidc: str, invitation: str, tenant: str
) -> None:
    """Raise ClientError unless exactly one way to sign in is given, and the tenant belongs to it."""
    if sum(map(bool, (email, credentials, oidc, invitation))) != 1:
        raise ClientError(
            "INVALID_ARGUMENT",
            "The way to sign in is not clear",
            "Give exactly one of: an e-mail address, --oidc, --invitation, --credentials",
        )
    if tenant and (oidc or invitation):
        raise ClientError(
            "INVALID_ARGUMENT",
            f"--tenant cannot be combined with {'--oidc' if oidc else '--invitation'}",
            "Drop it: that belongs to one tenant",
        )


def _welcome(profile: Profile, account: str) -> None:
    echo(f"Signed in. {profile.name} is now the current profile.")
    if os.environ.get("NEOCLOUD_HOME"):
        instead = f"neo --profile {quote(profile.name)}"
        warn(f"NEOCLOUD_HOME is set and takes precedence. Unset it, or use `{instead}`.")
    print_view(
        fields_table(
            [
                ("  Account", account),
                ("  API", profile.endpoint),
                ("  Project", profile.project_id),
            ]
        )
    )
    if not profile.project_id:
        say(
            "No project is chosen: `neo iam project list` lists yours, `neo config set-project NAME` chooses."
        )


def _free_name(wanted: str, endpoint: str) -> str:
    """Return the name of the new profile, and say so where it is not the one wanted."""
    name = sign_in.profile_name(read_profiles(config_file()), wanted, endpoint)
    if name != wanted:
        say(f"Profile {wanted} is of another cloud and is unchanged; the new profile is named {name}.")
    return name


def _url_and_email(words: Sequence[str]) -> tuple[str, str]:
    """Return the URL and the e-mail address among the arguments, each "" where it is not there."""
    urls, emails = [each for each in words if is_url(each)], [each for each in words if not is_url(each)]
    if len(urls) > 1 or len(emails) > 1:
        raise ClientError(
            "INVALID_ARGUMENT", "There is more than one URL or e-mail address", "Give one of each at most"
        )
    return (urls[0] if urls else ""), (emails[0] if emails else "")


def _with_credentials(
    credentials: Path, target: sign_in.SignInTarget, name: str, tenant: str, project: str
) -> Profile:
    found = read_credentials(credentials)
    endpoint = target.endpoint or found.endpoint
    if not endpoint:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{credentials} does not name the cloud's endpoint",
            "Add --endpoint host:port",
        )
    sign_in.require_encryption(endpoint, target.ca_file, "A token of the account")
    with connect_as(found, endpoint, target.ca_file) as client:
        account = client.call("nebius.iam.v1.ProfileService/Get").service_account_profile.info
        place = account.metadata.parent_id
        if not place.startswith("project-"):  # The operator's account belongs to its tenant.
            place = project or found.project_id or sign_in.default_project(client, place)
        kept = Profile("", endpoint, str(credentials), tenant_id=found.tenant_id, project_id=place)
        tenant_id = tenant_id_of(client, kept, tenant)
    return Profile(
        name=name or _free_name("default", endpoint),
        endpoint=endpoint,
        credentials_file=str(credentials.absolute()),
        tenant_id=tenant_id,
        project_id=project or found.project_id or place,
        ca_file=target.ca_file,
        http_endpoint=target.http_endpoint,
        gateway_endpoint=target.gateway,
        announcement=target.announcement,
    )


logout_app = command_group()


@logout_app.command()
def logout(context: typer.Context) -> None:
    """Sign out and remove the profile. No other profile takes its place until one is selected.

    Example:

      neo logout
    """
    profile = profile_of(context)
    if not profile.session_file:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"Profile {profile.name!r} belongs to a service account, which has no session",
            f"Remove it with `neo config remove {quote(profile.name)}`",
        )
    file = Path(profile.session_file)
    try:
        session = read_session(file)
        endpoint = live_endpoint(profile)
        with open_channel(endpoint, profile.ca_file) as channel:
            sign_out(invoker(channel, endpoint, version=""), session)
    except ClientError as error:
        warn(f"The cloud could not be reached, so the session stays valid until it is revoked. {error}")
    forget_session(file)
    profiles = read_profiles(config_file()).signed_out(profile.name)
    write_profiles(profiles, config_file())
    echo(f"Signed out. Profile {profile.name} is removed.")
    if profiles.items and not profiles.current:
        others = ", ".join(sorted(profiles.items))
        say(f"No profile is selected now. `neo config use NAME` selects one of: {others}.")


whoami_app = command_group()


@whoami_app.command()
def whoami(client: Connected, profile: CurrentProfile, output: OutputOption = Format.TABLE) -> None:
    """Show the account, tenant and project that commands use.

    Examples:

      neo whoami
      neo --profile alice whoami -o json
    """
    answer = client.call("nebius.iam.v1.ProfileService/Get")
    rows = [
        ("Account", format_account(answer)),
        ("Tenant", profile.tenant_id),
        ("Project", profile.project_id),
        ("Profile", profile.name),
        ("API", profile.endpoint),
    ]
    of_profile = {
        "tenant_id": profile.tenant_id,
        "project_id": profile.project_id,
        "profile_name": profile.name,
        "endpoint": profile.endpoint,
    }
    show(output, {**contract.to_document(answer), **of_profile}, fields_table(rows))


SESSIONS = "neocloud.iam.v1.SessionService"
REVOKE = "nebius.iam.v1.SessionManagementService/Revoke"


def _minute(time: str) -> str:
    """ "2026-11-28 16:34" of a time in the contract's form, which is UTC."""
    return time[:16].replace("T", " ")


session_app = command_group("Sign-in sessions.\n\nExample:\n\n  neo session list")


@session_app.command("list")
def list_sessions(
    client: Connected,
    profile: CurrentProfile,
    user: Annotated[
        str, typer.Option(help="E-mail address or id of another user account (admins only).")
    ] = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """List your sessions, or another user's.

    Examples:

      neo session list
      neo session list --user alice@example.com
    """
    parent_id = user_id(client, profile.tenant_id, user)
    found = client.list_all(f"{SESSIONS}/List", {"parent_id": parent_id})
    items = [contract.to_document(item) for item in found]
    rows = (
        (
            *(item["metadata"]["id"], item["spec"].get("method", ""), item["spec"].get("client", "")),
            *(_minute(item["status"][time]) for time in ("last_refreshed_at", "expires_at")),
        )
        for item in items
    )
    view = table(["ID", "SIGNED IN BY", "CLIENT", "LAST USED, UTC", "ENDS, UTC"], rows)
    show(output, items, view, empty="There are no sessions.")


@session_app.command()
def revoke(
    client: Connected,
    profile: CurrentProfile,
    session_id: Annotated[str, typer.Argument(help="Id of the session.")] = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Revoke all of yours, including this one.")
    ] = False,
    user: Annotated[
        str, typer.Option(help="E-mail address or id of a user whose sessions to revoke (admins only).")
    ] = "",
    service_account: Annotated[
        str, typer.Option(help="Id or name of a service account whose tokens to revoke (admins only).")
    ] = "",
) -> None:
    """End sessions; their tokens stop working within a second.

    Examples:

      neo session revoke session-e00abc
      neo session revoke --all
      neo session revoke --user alice@example.com
    """
    if sum(map(bool, (session_id, everything, user, service_account))) != 1:
        raise typer.BadParameter("Give a session id, or one of --all, --user, --service-account.")
    if session_id:
        client.call(f"{SESSIONS}/Revoke", {"id": session_id})
    elif everything:
        client.call(REVOKE, {"all_my_active": True})
    elif user:
        account_id = user_id(client, profile.tenant_id, user)
        client.call(REVOKE, {"tenant_user_account_id": account_id})
    else:
        cloud = ProjectClient(client, profile, profile.project_id)
        account_id = id_of(cloud, SERVICE_ACCOUNTS, service_account)
        client.call(REVOKE, {"service_account_id": account_id})
    echo("Revoked.")


@session_app.command()
def token(client: Connected) -> None:
    """Print an access token for other programs, as `neo iam get-access-token` does.

    It is valid for an hour at most. Anyone who has it can act as you.

    Examples:

      neo session token
      export NEBIUS_IAM_TOKEN=$(neo session token)
    """
    echo(client.tokens.token())
