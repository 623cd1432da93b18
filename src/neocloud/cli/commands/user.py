"""`neo user`: people who may sign in. Generated passwords are printed once and stored nowhere."""

from pathlib import Path
from typing import Annotated

import typer

from neocloud.cli.lazy import Options, command_group
from neocloud.cli.machine.entrance import sign_in_url
from neocloud.cli.machine.home import Home
from neocloud.cli.output import Format, OutputOption, YesOption, confirm, fields_table, say, show, table
from neocloud.cli.resources.lookup import Connected
from neocloud.cli.resources.people import user_id, users
from neocloud.cli.sign_in import ask_new_password, ask_password
from neocloud.cli.ssh import read_public_keys
from neocloud.cli.target import client_of, profile_of
from neocloud.cli.terminal import echo
from neocloud.client.connection import Client
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile
from neocloud.core import contract

USERS = "neocloud.iam.v1.UserService"
ACCOUNTS = "nebius.iam.v1.TenantUserAccountService"
SSH_KEYS = "neocloud.iam.v1.SshKeyService"
IAM = "nebius.iam.v1"
app = command_group(
    "Users: people who may sign in.\n\nExample:\n\n  neo user create alice@example.com --group editors"
)

UserArgument = Annotated[str, typer.Argument(help="E-mail address, or id of the user account.")]
GroupsOption = Annotated[list[str] | None, typer.Option("--group", help="Name or id of a group; repeatable.")]
StdinOption = Annotated[bool, typer.Option(help="Read the password from standard input.")]


def tenant_of(context: typer.Context) -> str:
    profile = profile_of(context)
    if profile.tenant_id:
        return profile.tenant_id
    raise ClientError(
        "INVALID_ARGUMENT", f"Profile {profile.name!r} has no tenant", "Sign in again with --tenant ID"
    )


TenantId = Annotated[str, Options(tenant_of)]


@app.command()
def create(
    context: typer.Context,
    email: Annotated[str, typer.Argument(help="E-mail address.")],
    name: Annotated[str, typer.Option(help="The person's name.")] = "",
    group: GroupsOption = None,
    password_stdin: StdinOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Create a user with a password, which alone goes to stdout.

    Examples:

      neo user create alice@example.com --group admins
      PASSWORD=$(neo user create alice@example.com)
    """
    password = ask_password("", from_stdin=True) if password_stdin else ""
    request = {"parent_id": tenant_of(context), "email": email, "name": name, "password": password}
    with client_of(context) as client:
        group_ids = [_group_id(client, request["parent_id"], each) for each in group or []]
        created = client.call(f"{USERS}/Create", request)
        _add(client, created.tenant_user_account_id, group_ids)
    if output is not Format.TABLE:
        show(output, contract.to_document(created), fields_table(()))
        return
    say(f"Created user {email} ({created.tenant_user_account_id}).")
    _print_password(created.generated_password)


@app.command("list")
def list_users(client: Connected, tenant_id: TenantId, output: OutputOption = Format.TABLE) -> None:
    """List the users of the tenant.

    Example:

      neo user list
    """
    items = [contract.to_document(item) for item in users(client, tenant_id)]
    rows = (
        (
            item["attributes"].get("email", ""),
            item["attributes"].get("name", ""),
            item["tenant_user_account"]["status"].get("state", ""),
            item["tenant_user_account"]["status"].get("federation_id", "") or "password",
            item["tenant_user_account"]["metadata"]["id"],
        )
        for item in items
    )
    view = table(["E-MAIL", "NAME", "STATE", "SIGNS IN BY", "ID"], rows)
    show(output, items, view, empty="There are no users. `neo user create EMAIL` creates one.")


@app.command()
def invite(
    context: typer.Context,
    email: Annotated[str, typer.Argument(help="E-mail address.")],
    group: GroupsOption = None,
    days: Annotated[int, typer.Option(min=1, max=30, help="Days until the invitation expires.")] = 7,
    output: OutputOption = Format.TABLE,
) -> None:
    """Invite a person, who chooses a password.

    No mail is sent: deliver the printed code over a channel that you trust.

    Example:

      neo user invite bob@example.com --group viewers
    """
    tenant_id = tenant_of(context)
    request = {
        "metadata": {"parent_id": tenant_id},
        "spec": {"email": email},
        "no_send": True,
        "expires_in": f"{days * 86400}s",
    }
    with client_of(context) as client:
        group_ids = [_group_id(client, tenant_id, each) for each in group or []]
        invitation_id = client.wait(client.call(f"{IAM}.InvitationService/Create", request)).resource_id
        invitation = client.call(f"{IAM}.InvitationService/Get", {"id": invitation_id})
        _add(client, invitation.status.tenant_user_account_id, group_ids)
        code = client.call(f"{USERS}/IssueInvitationCode", {"id": invitation_id}).code
        endpoint = client.endpoint
    login = f"neo login {_where(profile_of(context)) or f'--endpoint {endpoint}'} --invitation {code}"
    if output is not Format.TABLE:
        answer = {"id": invitation_id, "email": email, "code": code, "endpoint": endpoint, "login": login}
        show(output, answer, fields_table(()))
        return
    say(f"Invited {email} ({invitation_id}). No mail is sent; this signs them in once, within {days} days:")
    echo(login)


GroupArgument = Annotated[str, typer.Argument(help="Name or id of the group.")]


@app.command()
def add_to_group(client: Connected, tenant_id: TenantId, user: UserArgument, group: GroupArgument) -> None:
    """Add a user to a group, which gives them its rights.

    Example:

      neo user add-to-group alice@example.com editors
    """
    _add(client, user_id(client, tenant_id, user), [_group_id(client, tenant_id, group)])
    echo(f"{user} is in the group {group}.")


@app.command()
def remove_from_group(
    client: Connected, tenant_id: TenantId, user: UserArgument, group: GroupArgument
) -> None:
    """Remove a user from a group; its rights end within a second.

    Example:

      neo user remove-from-group alice@example.com editors
    """
    account_id, group_id = user_id(client, tenant_id, user), _group_id(client, tenant_id, group)
    members = client.list_all(f"{IAM}.GroupMembershipService/ListMembers", {"parent_id": group_id})
    found = [each.metadata.id for each in members if each.spec.member_id == account_id]
    if not found:
        raise ClientError("NOT_FOUND", f"{user} is not in the group {group}")
    client.wait(client.call(f"{IAM}.GroupMembershipService/Delete", {"id": found[0]}))
    echo(f"{user} is no longer in the group {group}.")


@app.command()
def set_password(context: typer.Context, user: UserArgument, password_stdin: StdinOption = False) -> None:
    """Set a new password for a user and end their sessions.

    Example:

      neo user set-password alice@example.com
    """
    password = ask_password("", from_stdin=True) if password_stdin else ""
    with client_of(context) as client:
        request = {"id": user_id(client, tenant_of(context), user), "password": password}
        answer = client.call(f"{USERS}/SetPassword", request)
    say(f"The password of {user} is changed; all their sessions have ended.")
    _print_password(answer.generated_password)


@app.command()
def change_password(context: typer.Context) -> None:
    """Change your own password and end your other sessions.

    Example:

      neo user change-password
    """
    request = {
        "current_password": ask_password("Current password", from_stdin=False),
        "new_password": ask_new_password(from_stdin=False),
    }
    with client_of(context) as client:
        client.call(f"{USERS}/ChangePassword", request)
    echo("Your password is changed; your other sessions have ended.")


@app.command()
def second_factor(client: Connected) -> None:
    """Protect your own account with an authenticator app.

    Example:

      neo user second-factor
    """
    who = client.call("nebius.iam.v1.ProfileService/Get")
    if who.WhichOneof("profile") != "user_profile":
        raise ClientError(
            "FAILED_PRECONDITION",
            "This profile is of a service account, which has no second factor",
            "Sign in as a person with `neo login EMAIL`",
        )
    password = ask_password("Current password", from_stdin=False)
    begun = client.call(f"{USERS}/StartTotp", {"current_password": password})
    say(f"Add this to your authenticator app, or enter the secret {begun.secret}:\n\n  {begun.uri}\n")
    client.call(f"{USERS}/ConfirmTotp", {"totp_code": typer.prompt("Code shown in the app", err=True)})
    echo("Signing in now requires a code.")


KeyFileArgument = Annotated[Path, typer.Argument(help="Public key file.")]


@app.command()
def add_ssh_key(client: Connected, file: KeyFileArgument) -> None:
    """Add an SSH key of your own, for the Slurm clusters of your groups.

    Example:

      neo user add-ssh-key ~/.ssh/id_ed25519.pub
    """
    for key in read_public_keys([file]):
        client.call(f"{SSH_KEYS}/Add", {"public_key": key})
    echo("Clusters of your groups accept the key within seconds.")


@app.command()
def list_ssh_keys(client: Connected, output: OutputOption = Format.TABLE) -> None:
    """List your own SSH keys.

    Example:

      neo user list-ssh-keys
    """
    keys = list(client.call(f"{SSH_KEYS}/List").public_keys)
    items = [dict(zip(("type", "key", "comment"), key.split(None, 2), strict=False)) for key in keys]
    rows = [(item["type"], f"...{item['key'][-16:]}", item.get("comment", "")) for item in items]
    show(output, items, table(["TYPE", "KEY", "COMMENT"], rows), empty="You have no SSH keys.")


@app.command()
def remove_ssh_key(client: Connected, file: KeyFileArgument) -> None:
    """Remove an SSH key of your own.

    Sessions that it opened stay, and so does what ~/.ssh/authorized_keys in a cluster has.

    Example:

      neo user remove-ssh-key old-laptop.pub
    """
    for key in read_public_keys([file]):
        client.call(f"{SSH_KEYS}/Remove", {"public_key": key})
    echo("The key is removed.")


def _for_user(name: str, method: str, about: str, done: str) -> None:
    """Add a command that calls a method with the id of a user."""

    @app.command(name, help=f"{about}\n\nExample:\n\n  neo user {name} alice@example.com")
    def call(client: Connected, tenant_id: TenantId, user: UserArgument) -> None:
        client.call(method, {"id": user_id(client, tenant_id, user)})
        echo(f"{user} {done}")


_for_user(
    "remove-second-factor",
    f"{USERS}/RemoveTotp",
    "Remove the second factor of a user who lost their authenticator app.",
    "now signs in with the password alone.",
)
_for_user(
    "block", f"{ACCOUNTS}/Block", "Block a user: end their sessions and refuse new ones.", "is blocked."
)
_for_user("unblock", f"{ACCOUNTS}/Unblock", "Unblock a user.", "may sign in again.")


@app.command()
def delete(client: Connected, tenant_id: TenantId, user: UserArgument, yes: YesOption = False) -> None:
    """Delete a user with their memberships and sessions.

    Example:

      neo user delete alice@example.com --yes
    """
    confirm(f"user {user} with their memberships and sessions", yes=yes, is_new=True)
    client.call(f"{USERS}/Delete", {"id": user_id(client, tenant_id, user)})
    echo(f"{user} is deleted.")


def _where(profile: Profile) -> str:
    """Return the URL for other machines to sign in at; "" for a cloud that this machine alone reaches."""
    if profile.http_endpoint:
        return profile.http_endpoint
    place = Home(Path(profile.home)) if profile.home else None
    server = place.server() if place else None
    return sign_in_url(place, server) if place and server and server.listen else ""


def _group_id(client: Client, tenant_id: str, group: str) -> str:
    if group.startswith("group-"):
        return group
    request = {"parent_id": tenant_id, "name": group}
    return client.call(f"{IAM}.GroupService/GetByName", request).metadata.id


def _add(client: Client, account_id: str, group_ids: list[str]) -> None:
    for group_id in group_ids:
        request = {"metadata": {"parent_id": group_id}, "spec": {"member_id": account_id}}
        client.wait(client.call(f"{IAM}.GroupMembershipService/Create", request))


def _print_password(password: str) -> None:
    if password:
        say("Generated password, shown only once:")
        echo(password)
