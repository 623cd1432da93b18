"""`neo iam`: projects, accounts and their permissions, and an access token of the caller."""

from neocloud.cli.resources.commands import product_app
from neocloud.cli.resources.lookup import Connected
from neocloud.cli.terminal import echo

PROFILE = "nebius.iam.v1.ProfileService/Get"

app = product_app("iam")


@app.command("get-access-token")
def get_access_token(client: Connected) -> None:
    """Print an access token of the signed-in account, for other programs; also as `neo iam token`.

    Only the token goes to standard output. It is valid for an hour at most, and the cloud has just accepted
    it. Anyone who has it can act as you.

    Examples:

      neo iam get-access-token
      export NEBIUS_IAM_TOKEN=$(neo iam get-access-token)
    """
    client.call(PROFILE)  # which renews a token that the cloud does not accept any more
    echo(client.tokens.token())


@app.command("token", hidden=True)
def token(client: Connected) -> None:
    """Print an access token of the signed-in account, as `neo iam get-access-token` does.

    Example:

      neo iam token
    """
    get_access_token(client)
