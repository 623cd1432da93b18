"""`neo slurm storage`: the keys for object storage that jobs and login shells of a cluster find."""

from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.commands.slurm.watch import watch_operation
from neocloud.cli.lazy import command_group
from neocloud.cli.resources.lookup import CLUSTERS, Cloud, ClusterArgument, id_of
from neocloud.cli.resources.names import SERVICE_ACCOUNTS
from neocloud.cli.resources.viewed import ListView, list_in_cluster
from neocloud.cli.terminal import echo
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.messages.neocloud.slurm.v1 import StorageKeyStatus

SERVICE = "neocloud.slurm.v1.StorageAccessService"
NONE = "none"

app = command_group(
    """Keys for object storage on the nodes of a cluster, which the cloud keeps and renews.

Examples:

  neo slurm storage allow lab
  neo slurm storage use-account lab trainer
  neo slurm storage list lab
"""
)


@app.command()
def allow(cloud: Cloud, cluster: ClusterArgument) -> None:
    """Let your jobs on a cluster use buckets as you, if you are a user of it by a group.

    Your Linux user gets a short-lived key for the buckets of the cluster's project. It may do what you may do
    when it is used. Root of the cluster can read it: allow this only where you trust who administers it.

    Example:

      neo slurm storage allow lab
    """
    cloud.client.call(f"{SERVICE}/Allow", {"cluster_id": id_of(cloud, CLUSTERS, cluster)})
    echo(f"New shells and jobs of yours on {cluster} use buckets as you, within seconds.")
    echo(f"End it: neo slurm storage withdraw {quote(cluster)}")


@app.command()
def withdraw(cloud: Cloud, cluster: ClusterArgument) -> None:
    """End your own keys on a cluster, also those that jobs are using.

    Example:

      neo slurm storage withdraw lab
    """
    cloud.client.call(f"{SERVICE}/Withdraw", {"cluster_id": id_of(cloud, CLUSTERS, cluster)})
    echo(f"Your jobs on {cluster} have no key for object storage any more.")


AccountArgument = Annotated[
    str, typer.Argument(help=f'Name or id of a service account, or "{NONE}" to end its keys.')
]


@app.command()
def use_account(cloud: Cloud, cluster: ClusterArgument, account: AccountArgument) -> None:
    """Let jobs of root and of the users that were added by name use buckets as a service account.

    It needs the right to act as the account, also for later changes of the cluster and for jobs that are
    submitted through the API. People in groups are not concerned: see `neo slurm storage allow`.

    Examples:

      neo slurm storage use-account lab trainer
      neo slurm storage use-account lab none
    """
    found = cloud.find(CLUSTERS, cluster)
    account_id = id_of(cloud, SERVICE_ACCOUNTS, account) if account != NONE else ""
    found.spec.service_account_id = account_id
    change = contract.message("neocloud.slurm.v1.UpdateClusterRequest")(
        metadata={"id": found.metadata.id, "resource_version": found.metadata.resource_version},
        spec=found.spec,
    )
    # An empty id is the field's default: it changes only if the mask names it.
    operation = cloud.client.call(f"{CLUSTERS}/Update", change, reset_mask=["spec.service_account_id"])
    watch_operation(cloud, operation, f"Change the account of {cluster}", is_change=True)
    if account_id:
        echo(f"New shells and jobs on {cluster} use buckets as {account}.")
    else:
        echo(f"Root of {cluster}, and users added by name, have no key for object storage any more.")


def _renewed_before(key: "StorageKeyStatus") -> str:
    return contract.to_datetime(key.expires_at).isoformat(timespec="seconds")


list_in_cluster(
    app,
    lambda cluster: cluster.status.storage_keys,
    ListView(
        {
            "USER": lambda key: key.user,
            "ACCOUNT": lambda key: key.account_id,
            "RENEWED BEFORE": _renewed_before,
        },
        document=lambda key: {
            "user": key.user,
            "account_id": key.account_id,
            "expires_at": _renewed_before(key),
        },
    ),
    "List the users of a cluster who have a key for object storage, and the accounts that they act as."
    "\n\nExample:\n\n  neo slurm storage list lab",
)
