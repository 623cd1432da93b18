"""`neo session`: list and revoke sign-in sessions, print a token."""

from typing import Annotated

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, OutputOption, show, table
from neocloud.cli.target import client_of
from neocloud.cli.terminal import echo
from neocloud.core import contract

SERVICE = "neocloud.iam.v1.SessionService"
app = command_group("Sign-in sessions.\n\nExample:\n\n  neo session list")


@app.command("list")
def list_sessions(
    context: typer.Context,
    user: Annotated[str, typer.Option(help="Id of another user account (admins only).")] = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """List your sessions, or another user's.

    Examples:

      neo session list
      neo session list --user tenantuseraccount-e00abc
    """
    with client_of(context) as client:
        items = [contract.to_dict(item) for item in client.list_all(f"{SERVICE}/List", {"parent_id": user})]
    rows = (
        (
            item["metadata"]["id"],
            item["spec"].get("method", ""),
            item["spec"].get("client", ""),
            item["status"]["last_refreshed_at"],
            item["status"]["expires_at"],
        )
        for item in items
    )
    view = table(["ID", "SIGNED IN BY", "CLIENT", "LAST USED", "ENDS"], rows)
    show(output, items, view, empty="There are no sessions.")


@app.command()
def revoke(
    context: typer.Context,
    session_id: Annotated[str, typer.Argument(help="Id of the session.")] = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Revoke all of yours, including this one.")
    ] = False,
    user: Annotated[str, typer.Option(help="Revoke all of this user account (admins only).")] = "",
    service_account: Annotated[
        str, typer.Option(help="Revoke all tokens of this service account (admins only).")
    ] = "",
) -> None:
    """End sessions; their tokens stop working within a second.

    Examples:

      neo session revoke session-e00abc
      neo session revoke --all
      neo session revoke --user tenantuseraccount-e00abc
    """
    named = {
        "all_my_active": everything,
        "tenant_user_account_id": user,
        "service_account_id": service_account,
    }
    chosen = {field: value for field, value in named.items() if value}
    if len(chosen) + bool(session_id) != 1:
        raise typer.BadParameter("Give a session id, or one of --all, --user, --service-account.")
    with client_of(context) as client:
        if session_id:
            client.call(f"{SERVICE}/Revoke", {"id": session_id})
        else:
            client.call("nebius.iam.v1.SessionManagementService/Revoke", chosen)
    echo("Revoked.")


@app.command()
def token(context: typer.Context) -> None:
    """Print an access token for other programs.

    It is valid for an hour at most. Anyone who has it can act as you.

    Examples:

      neo session token
      export NEBIUS_IAM_TOKEN=$(neo session token)
    """
    with client_of(context) as client:
        echo(client.tokens.token())
