"""`neo inference feedback`: what callers said of answers."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, OutputOption, YesOption, confirm, say, show, table
from neocloud.cli.resources.lookup import Cloud
from neocloud.cli.target import gateway_of, listed

app = command_group(
    """Ratings of answers, from the chat page and from `POST /v1/feedback`.

A rating is kept for 90 days. It has question, answer and comment only where its author consented.

Examples:

  neo inference feedback list --rating down
  neo inference feedback delete FEEDBACK
"""
)


@app.command("list")
def list_feedback(
    context: typer.Context,
    cloud: Cloud,
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="Only of this model: called by this name, or answering.")
    ] = "",
    rating: Annotated[str, typer.Option(metavar="RATING", help="Only these: up or down.")] = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """List the ratings of the project, the newest first.

    MODEL is what the client called; ANSWERED BY is another model where a release sent the request there.

    Example:

      neo inference feedback list --model bank --rating down --output json
    """
    query = {name: value for name, value in (("model", model), ("rating", rating)) if value}
    with gateway_of(context, project=cloud.project) as gateway:
        found = list(listed(gateway, "feedback", **query))
    columns = ["ID", "RATED", "RATING", "MODEL", "ANSWERED BY", "QUESTION", "ANSWER", "COMMENT"]
    rows = [
        (
            each["id"],
            f"{datetime.fromtimestamp(each['created_at'], UTC):%Y-%m-%d %H:%M}",
            each["rating"],
            each["called"],
            each["answered_by"],
            each["question"],
            each["answer"],
            each["comment"],
        )
        for each in found
    ]
    show(output, found, table(columns, rows), empty="No ratings.")


@app.command("delete")
def delete_feedback(
    context: typer.Context,
    cloud: Cloud,
    feedback: Annotated[str, typer.Argument(metavar="FEEDBACK", help="Id of the rating.")],
    yes: YesOption = False,
) -> None:
    """Delete a rating with its texts.

    Example:

      neo inference feedback delete feedback-0123456789abcdef01234567 --yes
    """
    with gateway_of(context, project=cloud.project) as gateway:
        confirm(f"rating {feedback}", yes=yes)
        gateway.delete(f"feedback/{feedback}")
    say(f"Rating {feedback} is deleted.")
