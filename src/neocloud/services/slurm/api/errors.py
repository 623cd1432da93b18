"""Errors of clusters as errors of the API."""

from collections.abc import Iterator
from contextlib import contextmanager

from neocloud.core import contract
from neocloud.services.slurm.access import ClusterMissing, ClusterNotReady
from neocloud.services.slurm.public import ClusterUnreachable, JobRefused


@contextmanager
def api_errors(cluster_id: str) -> Iterator[None]:
    """Translate errors of `SlurmAccess` and `ClusterJobs` into errors of the API."""
    try:
        yield
    except ClusterMissing as error:
        raise contract.not_found("cluster", cluster_id) from error
    except ClusterNotReady as error:
        raise contract.bad_state(
            cluster_id,
            f'Cluster "{error.name}" is {error.state}, not READY. '
            f"See what it waits for with: neo slurm cluster get {error.name}",
        ) from error
    except ClusterUnreachable as error:
        text = str(error)
        raise contract.unavailable(f"{text[:1].upper()}{text[1:]}. Try again in a moment.") from error
    except JobRefused as error:
        raise contract.bad_state(cluster_id, f"Slurm refused: {error}") from error
