"""`neo slurm user`: the Linux users of a cluster, and the keys they sign in with."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neocloud.cli.commands.slurm.watch import watch_operation
from neocloud.cli.lazy import command_group
from neocloud.cli.output import YesOption, confirm, counted
from neocloud.cli.progress import duration
from neocloud.cli.resources.lookup import (
    CLUSTERS,
    Cloud,
    ClusterArgument,
    ProjectClient,
    ProjectOption,
    closest_names,
    connect_to_project,
)
from neocloud.cli.resources.viewed import ListView, list_in_cluster
from neocloud.cli.ssh import read_public_keys
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.core import contract

if TYPE_CHECKING:
    from collections.abc import MutableSequence

    from neocloud.cli.progress import StepsView
    from neocloud.messages.neocloud.slurm.v1 import Cluster

ROOT = "root"

UserArgument = Annotated[
    str, typer.Argument(help="Name of the user in the cluster; root for its administrator.")
]
KeysOption = Annotated[
    list[Path] | None,
    typer.Option("--ssh-key", help="Public key file; repeatable.", show_default=False),
]

app = command_group(
    """Linux users of a cluster: accounts in its shared root, with the right to submit jobs.

Examples:

  neo slurm user add lab ann --ssh-key ann.pub
  neo slurm user add-group lab quants
  neo slurm cluster ssh lab --user ann
"""
)


@app.command()
def add(
    context: typer.Context,
    cluster: ClusterArgument,
    user: UserArgument,
    ssh_key: KeysOption = None,
    project: ProjectOption = "",
) -> None:
    """Add a user to a cluster, or keys to a user, also to root.

    The user gets an account with a home in the shared root and may submit jobs. Nothing is restarted.

    Examples:

      neo slurm user add lab ann --ssh-key ann.pub
      neo slurm user add lab root --ssh-key laptop.pub
    """
    keys = read_public_keys(ssh_key or ())
    cloud = connect_to_project(context, project)
    found = cloud.find(CLUSTERS, cluster)
    if user == ROOT and not keys:
        raise ClientError("INVALID_ARGUMENT", "root is there already", "Give a key to add: --ssh-key FILE")
    if user not in (ROOT, *(each.name for each in found.spec.users)):
        found.spec.users.add(name=user)
    known = _keys_of(found, user)
    known.extend(key for key in dict.fromkeys(keys) if key not in known)
    view = _update(cloud, found, f"Add {user} to {cluster}")
    made = cloud.client.call(f"{CLUSTERS}/Get", {"id": found.metadata.id})
    status = next((each for each in made.status.users if each.name == user), None)
    if user != ROOT and (status is None or not status.uid):
        raise ClientError(
            "FAILED_PRECONDITION",
            f"User {user} has no account yet: {status.message if status else 'the cluster does not say why'}",
            f"The cloud tries again by itself; `neo slurm user list {quote(cluster)}` shows the state",
        )
    option = "" if user == ROOT else f" --user {quote(user)}"
    echo(f"User {user} is in cluster {cluster} after {duration(view.elapsed)}.")
    if known:
        echo(f"Sign in: neo slurm cluster ssh {quote(cluster)}{option}")
    else:
        echo(f"Nobody can sign in as {user}: add a key with --ssh-key FILE.")


def _listed(cluster: "Cluster") -> list[dict[str, Any]]:
    status = {each.name: each for each in cluster.status.users}
    keys = {ROOT: list(cluster.spec.login.ssh_public_keys)}
    keys |= {user.name: list(user.ssh_public_keys) for user in cluster.spec.users}
    return [
        {
            "name": name,
            "account_id": status[name].account_id if name in status else "",
            "uid": 0 if name == ROOT else status[name].uid if name in status else None,
            "ssh_public_keys": keys.get(name, []),
            "message": status[name].message if name in status else "",
        }
        for name in dict.fromkeys((*keys, *status))  # one that was removed from the spec may not be gone yet
    ]


def _keys_or_account(user: dict[str, Any]) -> str:
    return user["account_id"] or counted(len(user["ssh_public_keys"]), "key")


list_in_cluster(
    app,
    _listed,
    ListView(
        {
            "NAME": lambda user: user["name"],
            "UID": lambda user: user["uid"],
            "KEYS OR ACCOUNT": _keys_or_account,
            "NOTE": lambda user: user["message"],
        },
        right=["UID"],
        document=dict,
    ),
    "List the users of a cluster that the cloud keeps; root may have added others with useradd."
    "\n\nExample:\n\n  neo slurm user list lab",
)


@app.command()
def remove(
    context: typer.Context,
    cluster: ClusterArgument,
    user: UserArgument,
    ssh_key: KeysOption = None,
    yes: YesOption = False,
    project: ProjectOption = "",
) -> None:
    """Remove a user from a cluster; with --ssh-key, only these keys of the user.

    The user's jobs are cancelled and sessions end. The home stays in the shared root, and a user who is added
    again by the same name gets it back. Keys in ~/.ssh/authorized_keys are the user's own; they stay.

    Examples:

      neo slurm user remove lab ann --yes
      neo slurm user remove lab root --ssh-key old-laptop.pub
    """
    keys = read_public_keys(ssh_key or ())
    cloud = connect_to_project(context, project)
    found = cloud.find(CLUSTERS, cluster)
    names = [each.name for each in found.spec.users]
    if any(each.name == user and each.account_id for each in found.status.users):
        raise ClientError(
            "FAILED_PRECONDITION",
            f"{user} is a user by a group",
            "Take the person out of the group, or the group out of the cluster:"
            f" neo slurm user remove-group {quote(cluster)} GROUP",
        )
    if user not in (ROOT, *names):
        raise ClientError(
            "NOT_FOUND",
            f"Cluster {cluster} has no user {user!r}",
            closest_names(user, names) or f"`neo slurm user list {quote(cluster)}` lists them",
        )
    if keys:
        _remove_keys(found, user, keys)
        view = _update(cloud, found, f"Remove {counted(len(keys), 'key')} of {user}")
        echo(f"{counted(len(keys), 'key')} of {user} removed after {duration(view.elapsed)}.")
        return
    if user == ROOT:
        raise ClientError(
            "INVALID_ARGUMENT", "root cannot be removed", "Remove one of its keys: --ssh-key FILE"
        )
    confirm(f"user {user} of cluster {cluster}, whose jobs are cancelled", yes=yes)
    del found.spec.users[names.index(user)]
    view = _update(cloud, found, f"Remove {user} from {cluster}")
    echo(f"User {user} is removed after {duration(view.elapsed)}; /home/{user} stays in the shared root.")


GroupArgument = Annotated[str, typer.Argument(help="Name or id of a group of the tenant.")]


@app.command()
def add_group(cloud: Cloud, cluster: ClusterArgument, group: GroupArgument) -> None:
    """Make the people of a group users of a cluster, for as long as they are in the group.

    Each gets a Linux user, named after the e-mail address, and signs in with the keys of
    `neo user add-ssh-key`. Accounts that join or leave the group later are added or removed within seconds.

    Example:

      neo slurm user add-group lab quants
    """
    found, group_id = cloud.find(CLUSTERS, cluster), _group_id(cloud, group)
    if group_id not in found.spec.group_ids:
        found.spec.group_ids.append(group_id)
        _update(cloud, found, f"Add group {group} to {cluster}")
    echo(f"The people of {group} are users of {cluster}: neo slurm user list {quote(cluster)}")


@app.command()
def remove_group(cloud: Cloud, cluster: ClusterArgument, group: GroupArgument) -> None:
    """Remove a group from a cluster, and with it the users who are in no other group of the cluster.

    Their jobs are cancelled and sessions end. Homes stay, and those who come back get theirs again.

    Example:

      neo slurm user remove-group lab quants
    """
    found = cloud.find(CLUSTERS, cluster)
    group_id = group if group in found.spec.group_ids else _group_id(cloud, group)
    if group_id not in found.spec.group_ids:
        raise ClientError("NOT_FOUND", f"Cluster {cluster} does not have the group {group!r}", "")
    found.spec.group_ids.remove(group_id)
    _update(cloud, found, f"Remove group {group} from {cluster}")
    echo(f"Group {group} is removed from {cluster}; the homes stay in the shared root.")


def _group_id(cloud: ProjectClient, group: str) -> str:
    if group.startswith("group-"):
        return group
    request = {"parent_id": cloud.profile.tenant_id, "name": group}
    return cloud.client.call("nebius.iam.v1.GroupService/GetByName", request).metadata.id


def _remove_keys(cluster: "Cluster", user: str, keys: list[str]) -> None:
    known = _keys_of(cluster, user)
    bodies = {key.split()[1] for key in keys if len(key.split()) > 1}
    kept = [key for key in known if key.split()[1:2] == [] or key.split()[1] not in bodies]
    if len(kept) == len(known):
        raise ClientError(
            "NOT_FOUND",
            f"{user} does not have this key in cluster {cluster.metadata.name}",
            "Keys in ~/.ssh/authorized_keys are the user's own: edit that file on the login node",
        )
    del known[:]
    known.extend(kept)


def _keys_of(cluster: "Cluster", user: str) -> "MutableSequence[str]":
    if user == ROOT:
        return cluster.spec.login.ssh_public_keys
    return next(each for each in cluster.spec.users if each.name == user).ssh_public_keys


def _update(cloud: ProjectClient, cluster: "Cluster", title: str) -> "StepsView":
    request = contract.message("neocloud.slurm.v1.UpdateClusterRequest")(
        metadata={"id": cluster.metadata.id, "resource_version": cluster.metadata.resource_version},
        spec=cluster.spec,
    )
    # An empty list is the field's default: it changes only if the mask names it.
    lists = ["spec.users", "spec.users.*.ssh_public_keys", "spec.login.ssh_public_keys"]
    mask = [*lists, "spec.group_ids"]
    operation = cloud.client.call(f"{CLUSTERS}/Update", request, reset_mask=mask)
    return watch_operation(cloud, operation, title, is_change=True)
