"""`neo ... delete NAME --force`: delete as usual, and remove by force what does not go.

Only an operator of the cloud may remove a resource by force. It leaves pods, volumes, networks and files
behind, which are listed.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.output import print_view, say, table
from neocloud.cli.progress import finish
from neocloud.cli.terminal import echo
from neocloud.client.connection import Client
from neocloud.client.errors import ClientError
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.messages.neocloud.operator.v1 import LeftBehind

FORGET = "neocloud.operator.v1.ResourceService/Forget"
WAIT_SECONDS = 30.0
"""How long an ordinary deletion may take before force is used."""
_NOT_ACCEPTED = frozenset({"NOT_FOUND", "FAILED_PRECONDITION"})
"""Codes of a Delete that an operator may follow by force: the resource is another tenant's, or a release
before this one serves it and an earlier deletion has failed."""

ForceOption = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Delete a registry with its images. Of any resource: if the deletion does not end within"
        f" {WAIT_SECONDS:.0f} s, remove it from the control plane and list what is left behind (for operators"
        " of the cloud).",
    ),
]


def id_to_delete(find: Callable[[], str], name: str, *, force: bool) -> str:
    """Return the id that `find` finds. With --force, `name` may be an id that the caller cannot read."""
    try:
        return find()
    except ClientError as error:
        if error.code == "NOT_FOUND" and force and contract.is_id(name):
            return name
        raise


def delete_by_force(client: Client, path: str, resource_id: str, what: str, *, yes: bool) -> None:
    """Delete the resource with the method `path`, a registry with its images; if it is still there after
    that, remove it by force.

    Asks again before that, unless `yes`. Raises ClientError.
    """
    refusal: ClientError | None = None
    try:
        fields = contract.method(path).input.DESCRIPTOR.fields_by_name
        own = {"force": True} if "force" in fields else {}
        operation = client.call(path, {"id": resource_id, **own})
    except ClientError as error:
        if error.code not in _NOT_ACCEPTED:
            raise
        problem = refusal = error
    else:
        try:
            finish(client, operation, f"Delete {what}", WAIT_SECONDS)
        except ClientError as error:
            problem = error
        else:
            echo(f"{_sentence(what)} is deleted.")
            return
    outcome = "is still there" if refusal is None else "was not deleted"
    say(f"{_sentence(what)} {outcome}. {problem}")
    question = f"Remove {what} from the control plane by force? What it runs is left behind."
    if not yes and not typer.confirm(question, err=True):
        say(f"{_sentence(what)} is not removed by force.")
        raise typer.Exit(1)
    try:
        answer = client.call(FORGET, {"id": resource_id})
    except ClientError as error:
        if error.code == "NOT_FOUND" and (refusal is None or refusal.code != "NOT_FOUND"):
            echo(f"{_sentence(what)} is deleted.")  # by the deletion, which has ended meanwhile
            return
        raise
    echo(f"{_sentence(what)} is removed from the control plane.")
    _print_left_behind(answer.left_behind)


def _print_left_behind(left: "LeftBehind") -> None:
    if left.engine_error:
        say(f"The list of what is left behind is incomplete: {left.engine_error}")
    elif not left.objects and not left.folders:
        say("Nothing is known to be left behind. A step that was running may still have made something.")
    if left.objects or left.folders:
        say("This is left behind; nothing removes it but `neo destroy`, or you:")
        objects = [(each.kind, each.name, f"namespace {each.namespace}") for each in left.objects]
        folders = [("Folder", folder, "") for folder in left.folders]
        print_view(table(["KIND", "NAME", "WHERE"], [*objects, *folders]))
        say(
            "The cloud counts the CPUs, memory, GPUs and disk that these use as free, and may give them to"
            " others."
        )
    if left.commands:
        say(
            "On the cloud's machine, as root, these list containers, remove them, remove networks, and cancel"
            " Slurm jobs:"
        )
        for command in left.commands:
            echo(f"  {command}")
        say(
            "Remove folders only when the containers are gone. The one in engine/namespaces keeps volumes and"
            " addresses of the containers in use."
        )


def _sentence(what: str) -> str:
    return what[:1].upper() + what[1:]
