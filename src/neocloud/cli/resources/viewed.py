"""Commands `list` and `delete` that are derived from a kind and a view: what each column shows.

The commands of a product that are derived from the contract alone are in `verbs`; these are for kinds whose
lists show more than the fields of a message.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from neocloud.cli.output import Format, OutputOption, YesOption, confirm, show, table
from neocloud.cli.resources.deletion import ForceOption, delete_by_force, id_to_delete
from neocloud.cli.resources.lookup import CLUSTERS, Cloud, ClusterArgument, Connected, ProjectClient, names_of
from neocloud.core import contract


@dataclass(frozen=True)
class ListView:
    """The view of a list: a function for each column, and one for the values that programs read."""

    columns: Mapping[str, Callable[[Any], object]]
    empty: str = ""
    """Text in place of a list without items."""
    right: Sequence[str] = ()
    """Columns of numbers."""
    document: Callable[[Any], object] = contract.to_document

    def show(self, output: Format, items: Iterable[Any]) -> None:
        listed = list(items)
        rows = ([text(item) for text in self.columns.values()] for item in listed)
        documents = [self.document(item) for item in listed]
        show(output, documents, table(list(self.columns), rows, right=self.right), empty=self.empty)


def list_in_project(
    app: typer.Typer, service: str, view: Callable[[ProjectClient, list[Any]], ListView], help: str
) -> None:
    """Add `list` for the resources of a project."""

    @app.command("list", help=help)
    def list_resources(cloud: Cloud, output: OutputOption = Format.TABLE) -> None:
        items = cloud.list_all(service)
        view(cloud, items).show(output, items)


def list_all(
    app: typer.Typer, service: str, view: Callable[[], ListView], help: str, *, name: str = "list"
) -> None:
    """Add a command that lists all resources of a service, for operators."""

    @app.command(name, help=help)
    def list_resources(client: Connected, output: OutputOption = Format.TABLE) -> None:
        view().show(output, client.list_all(f"{service}/List"))


def list_in_cluster(
    app: typer.Typer, items: Callable[[Any], Iterable[Any]], view: ListView, help: str
) -> None:
    """Add `list` for what a Slurm cluster has."""

    @app.command("list", help=help)
    def list_parts(cloud: Cloud, cluster: ClusterArgument, output: OutputOption = Format.TABLE) -> None:
        view.show(output, items(cloud.find(CLUSTERS, cluster)))


def delete_in_project(
    app: typer.Typer,
    service: str,
    words: str,
    wait: Callable[[ProjectClient, Any, str], None],
    help: str,
    *,
    also: str = "",
    is_new: bool = False,
) -> None:
    """Add `delete` for the resources of a project.

    `wait` waits for the operation and says that it ended; `also` is lost with the resource; `is_new`: as in
    `confirm`.
    """

    @app.command(help=help)
    def delete(
        cloud: Cloud,
        name: Annotated[
            str, typer.Argument(help=f"Name or id of the {words}.", autocompletion=names_of(service))
        ],
        yes: YesOption = False,
        force: ForceOption = False,
    ) -> None:
        what = f"{words} {name}"
        resource_id = id_to_delete(lambda: cloud.find(service, name).metadata.id, name, force=force)
        confirm(f"{what} and {also}" if also else what, yes=yes, is_new=is_new)
        if force:
            delete_by_force(cloud.client, f"{service}/Delete", resource_id, what, yes=yes)
        else:
            wait(cloud, cloud.client.call(f"{service}/Delete", {"id": resource_id}), what)
