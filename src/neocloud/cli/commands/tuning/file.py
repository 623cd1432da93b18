"""`neo tuning file`: files that were uploaded to train on, and who depends on them."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from neocloud.cli.commands.inference.lineage import warn_of_dependents
from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, OutputOption, YesOption, confirm, say, show, table
from neocloud.cli.resources.lookup import Cloud
from neocloud.cli.target import gateway_of, listed

app = command_group(
    """Files that `neo tune` and OpenAI clients uploaded, and results of jobs.

Examples:

  neo tuning file list
  neo model list --trained-on FILE
  neo tuning file delete FILE
"""
)
FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="Id of the file.")]


@app.command("list")
def list_files(context: typer.Context, cloud: Cloud, output: OutputOption = Format.TABLE) -> None:
    """List the files of the project, the newest first.

    Example:

      neo tuning file list
    """
    with gateway_of(context, project=cloud.project) as gateway:
        files = list(listed(gateway, "files"))
    rows = [
        (each["id"], each["filename"], f"{each['bytes']:,}", each["purpose"], _created(each), each["sha256"])
        for each in files
    ]
    columns = ["ID", "NAME", "BYTES", "PURPOSE", "CREATED", "SHA-256"]
    show(output, files, table(columns, rows, right=["BYTES"]), empty="No files. `neo tune` uploads some.")


def _created(file: Any) -> str:
    return f"{datetime.fromtimestamp(file['created_at'], UTC):%Y-%m-%d %H:%M}"


@app.command("delete")
def delete_file(context: typer.Context, cloud: Cloud, file: FileArgument, yes: YesOption = False) -> None:
    """Delete a file. Models that have seen it are named first: they stay, and can be rebuilt only with a copy
    of the file.

    Example:

      neo tuning file delete file-0123456789abcdef01234567 --yes
    """
    with gateway_of(context, project=cloud.project) as gateway:
        gateway.get(f"files/{file}")
        warn_of_dependents(cloud, file)
        confirm(f"file {file}", yes=yes)
        gateway.delete(f"files/{file}")
    say(f"File {file} is deleted.")
