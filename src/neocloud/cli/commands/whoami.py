"""`neo whoami`: the account, tenant and project that commands use."""

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, OutputOption, fields_table, show
from neocloud.cli.signing_in import account_words
from neocloud.cli.target import client_of, profile_of
from neocloud.core import contract

app = command_group()


@app.command()
def whoami(context: typer.Context, output: OutputOption = Format.TABLE) -> None:
    """Show the account, tenant and project that commands use.

    Examples:

      neo whoami
      neo --profile alice whoami -o json
    """
    profile = profile_of(context)
    with client_of(context) as client:
        answer = client.call("nebius.iam.v1.ProfileService/Get")
    rows = [
        ("Account", account_words(answer)),
        ("Tenant", profile.tenant_id),
        ("Project", profile.project_id),
        ("Profile", profile.name),
        ("API", profile.endpoint),
    ]
    show(output, contract.to_dict(answer), fields_table(rows))
