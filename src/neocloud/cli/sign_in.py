"""Sign-in of a person at the terminal: password, browser, invitation. A password is never an argument."""

import os
import platform
import sys
import webbrowser
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import typer

from neocloud.cli.choice import Choice
from neocloud.cli.output import say
from neocloud.cli.target import DEFAULT_HOME, profile_of
from neocloud.client.connection import Client, invoke, invoker, live_endpoint, open_channel
from neocloud.client.credentials import StaticToken
from neocloud.client.errors import ClientError, ReleasesApart
from neocloud.client.loopback import BrowserReply
from neocloud.client.profiles import (
    Profile,
    Profiles,
    config_file,
    device_token,
    keep_device_token,
    read_profiles,
    session_file,
)
from neocloud.client.sessions import SIGN_IN, Session, sign_in, utc_now
from neocloud.client.trust import cloud_url, find_cloud, fingerprint_of_file
from neocloud.core import contract
from neocloud.core.announcements import Announcement, announced

if TYPE_CHECKING:
    from neocloud.messages.nebius.iam.v1 import GetProfileResponse

BROWSER_SECONDS = 300.0
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class SignInTarget:
    """The endpoint of a sign-in."""

    endpoint: str
    ca_file: str
    http_endpoint: str = ""
    gateway: str = ""
    announcement: str = ""

    def call(self, path: str, message: Any) -> Any:
        with open_channel(self.endpoint, self.ca_file) as channel:
            return invoker(channel, self.endpoint)(path, message)


def sign_in_target(context: typer.Context, endpoint: str, ca_file: str) -> SignInTarget:
    """Return the named endpoint, the cloud of the current profile, or the one on this machine.

    A password is sent only over loopback or TLS."""
    target = SignInTarget(endpoint, ca_file)
    if not endpoint:
        profile = _known_profile(context)
        if profile is None:
            return near_target()
        target = SignInTarget(
            live_endpoint(profile),
            ca_file or profile.ca_file,
            profile.http_endpoint,
            profile.gateway_endpoint,
            profile.announcement,
        )
    require_encryption(target.endpoint, target.ca_file, "Your password")
    return target


def _known_profile(context: typer.Context) -> Profile | None:
    """Return the profile to use; None for an account that has none, or whose NEOCLOUD_HOME is another's."""
    choice: Choice = context.find_object(Choice) or Choice()
    profiles = read_profiles(config_file())
    if not choice.profile and not profiles.current and not os.environ.get("NEOCLOUD_HOME"):
        return None
    try:
        return profile_of(context)
    except ClientError as error:
        if error.code != "PERMISSION_DENIED" or not announced():
            raise
        return None


def near_target(port: int = 0) -> SignInTarget:
    """Return the cloud that root runs on this machine, of several the one with this port of its API, or that
    in NEOCLOUD_HOME, or in the usual folder. Raises ClientError."""
    home = os.environ.get("NEOCLOUD_HOME", "") or str(DEFAULT_HOME)
    found = announced()
    wanted = [each for each in found if port in _ports(each[1])] if port else found
    if len(wanted) > 1:
        wanted = [each for each in wanted if each[1].home == home]
    if len(wanted) == 1:
        file, cloud = wanted[0]
        return SignInTarget(cloud.grpc, "", announcement=str(file))
    if found:
        urls = ", ".join(f"http://{cloud.http} ({cloud.home})" for _, cloud in found)
        raise ClientError(
            "INVALID_ARGUMENT",
            "It is not clear which cloud of this machine is meant",
            f"Name one: `neo login http://HOST:PORT EMAIL`. There are: {urls}",
        )
    raise ClientError(
        "NOT_FOUND",
        "There is no profile yet, and no cloud that root runs on this machine",
        "Start a cloud with `neo up`, or name the URL of one, which `neo status` shows its operator:"
        " `neo login https://HOST:PORT EMAIL`",
    )


def _ports(cloud: Announcement) -> frozenset[int]:
    return frozenset(int(each.rpartition(":")[2]) for each in (cloud.grpc, cloud.http))


def require_encryption(endpoint: str, ca_file: str, what: str) -> None:
    """Raise ClientError where a secret would leave this machine in plain text."""
    if not ca_file and endpoint.rpartition(":")[0] not in LOOPBACK:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{what} would be sent to {endpoint} unencrypted",
            "Give the cloud's URL (https://HOST:PORT), its certificate with --ca-file, or connect through"
            " `ssh -L`",
        )


def url_target(url: str, ca_file: str, fingerprint: str) -> SignInTarget:
    """Return the cloud at this URL, once its authority is trusted if it is not on this machine.

    Raises ClientError."""
    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname in LOOPBACK_NAMES:
        return near_target(parts.port or 0)
    found = find_cloud(url, ca_file, fingerprint, lambda shown: _confirm(url, shown))
    return SignInTarget(found.endpoint, found.ca_file, found.url, found.gateway)


def _confirm(url: str, shown: str) -> bool:
    if _is_confirmed(url, shown):
        return True
    say(
        f"No profile on this machine trusts the certificate authority of {url} yet. Its SHA-256 fingerprint:"
        f"\n\n  {shown}\n\nCompare it with the one in `neo status` on the cloud's machine."
    )
    if not sys.stdin.isatty():
        raise ClientError(
            "FAILED_PRECONDITION",
            "The fingerprint cannot be compared without a terminal",
            "Give the fingerprint with --fingerprint, or the authority's certificate with --ca-file",
        )
    return typer.confirm("Are they the same?", err=True)


def _is_confirmed(url: str, shown: str) -> bool:
    """Return whether a profile of this URL already trusts the authority with this fingerprint."""
    of_url = [
        each for each in read_profiles(config_file()).items.values() if each.http_endpoint == cloud_url(url)
    ]
    return any(fingerprint_of_file(each.ca_file) == shown for each in of_url)


def by_password(target: SignInTarget, email: str, code: str, tenant: str, from_stdin: bool) -> Session:
    fields = {
        "email": email,
        "password": ask_password("Password", from_stdin),
        "totp_code": code,
        "tenant_id": tenant,
        "client": client_label(),
        "device_token": device_token(target.endpoint, email),
    }

    def call(path: str, message: Any) -> Any:
        answer = target.call(path, message)
        if answer.device_token:
            keep_device_token(target.endpoint, email, answer.device_token)
        return answer

    try:
        return sign_in(call, "WithPassword", fields, utc_now())
    except ReleasesApart:
        raise
    except ClientError as error:
        if error.code != "FAILED_PRECONDITION" or code or from_stdin:
            raise
    fields["totp_code"] = typer.prompt("Code of your authenticator app", err=True)
    return sign_in(call, "WithPassword", fields, utc_now())


def in_browser(target: SignInTarget, federation_id: str, port: int) -> Session:
    with BrowserReply(port) as reply:
        path = f"{SIGN_IN}/StartOidc"
        request = {"federation_id": federation_id, "redirect_uri": reply.redirect_uri}
        begun = target.call(path, contract.method(path).input(**request))
        say(f"Sign in with the browser. If none opens, go to:\n\n  {begun.authorization_url}\n")
        webbrowser.open(begun.authorization_url)
        code, issuer = reply.wait(begun.state, BROWSER_SECONDS)
    fields = {
        "login_token": begun.login_token,
        "state": begun.state,
        "code": code,
        "iss": issuer,
        "client": client_label(),
    }
    return sign_in(target.call, "FinishOidc", fields, utc_now())


def by_invitation(target: SignInTarget, code: str, from_stdin: bool) -> Session:
    password = ask_new_password(from_stdin)
    fields = {"code": code, "password": password, "client": client_label()}
    return sign_in(target.call, "AcceptInvitation", fields, utc_now())


def email_of(target: SignInTarget, session: Session) -> str:
    """Return the e-mail address of the person who signed in; "" when there is none."""
    path = "nebius.iam.v1.ProfileService/Get"
    bearer = ("authorization", f"Bearer {session.access_token}")
    with open_channel(target.endpoint, target.ca_file) as channel:
        answer = invoke(channel, target.endpoint, path, contract.method(path).input(), [bearer])
    return answer.user_profile.attributes.email


def profile_name(profiles: Profiles, wanted: str, endpoint: str) -> str:
    """Return the name wanted, or one with the host when that name is of a profile of another cloud."""
    host, _, port = endpoint.rpartition(":")
    with_host = f"{wanted}-{host.strip('[]').replace(':', '-')}"
    for name in (wanted, with_host):
        known = profiles.items.get(name)
        if known is None or known.endpoint == endpoint:
            return name
    return f"{with_host}-{port}"


def make_profile(target: SignInTarget, session: Session, name: str, project: str) -> Profile:
    return Profile(
        name,
        target.endpoint,
        credentials_file="",
        tenant_id=session.tenant_id,
        project_id=project,
        session_file=str(session_file(name)),
        ca_file=target.ca_file,
        http_endpoint=target.http_endpoint,
        gateway_endpoint=target.gateway,
        announcement=target.announcement,
    )


def connect_with(session: Session, profile: Profile) -> Client:
    """Open a connection with the session's own token, before the session is stored."""
    channel = open_channel(profile.endpoint, profile.ca_file)
    return Client(channel, profile.endpoint, StaticToken(session.access_token))


def format_account(profile: "GetProfileResponse") -> str:
    """Return the account of a GetProfileResponse: "alice@example.com (tenantuseraccount-e00...)"."""
    if profile.WhichOneof("profile") == "user_profile":
        user = profile.user_profile
        return f"{user.attributes.email or user.attributes.name or user.attributes.sub} ({user.id})"
    metadata = profile.service_account_profile.info.metadata
    return f"{metadata.name or metadata.id} ({metadata.id})"


def ask_password(words: str, from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    return typer.prompt(words, hide_input=True, err=True)


def ask_new_password(from_stdin: bool) -> str:
    if from_stdin:
        return ask_password("", from_stdin)
    return typer.prompt("New password", hide_input=True, confirmation_prompt=True, err=True)


def client_label() -> str:
    """Return the name of this client in the list of sessions."""
    return f"neo on {platform.node()}"[:200]


def default_project(client: Client, tenant_id: str) -> str:
    """Return the project named `default...`, or the only one; "" if projects cannot be listed."""
    try:
        found = list(client.list_all("nebius.iam.v1.ProjectService/List", {"parent_id": tenant_id}))
    except ClientError as error:
        if error.code not in ("PERMISSION_DENIED", "NOT_FOUND"):
            raise
        return ""
    named = [project for project in found if project.metadata.name.startswith("default")]
    chosen = named or (found if len(found) == 1 else [])
    return chosen[0].metadata.id if chosen else ""
