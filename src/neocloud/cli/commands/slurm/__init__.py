"""`neo slurm`: clusters, their users, and the batch jobs in them."""

from neocloud.cli.commands.slurm import cluster, job_diagnose, login_node, storage, user
from neocloud.cli.lazy import command_group

app = command_group(
    """Slurm clusters and their batch jobs.

Examples:

  neo slurm cluster create lab --workers 2
  neo slurm job submit lab train.sbatch --wait
"""
)
app.add_typer(cluster.app, name="cluster")
app.add_typer(cluster.node_app, name="node")
app.add_typer(job_diagnose.app, name="job")
app.add_typer(user.app, name="user")
app.add_typer(login_node.app, name="login")
app.add_typer(storage.app, name="storage")
