"""Stage the files of model servers: adapters for pods; weights, adapters and the key for jobs of a cluster.

A pod mounts one folder of its deployment's adapters, so an adapter that is added later needs no new pod. A
cluster's workers mount one folder of this machine:

    <models mount of the cluster>/<deployment id>/key           bearer token of the model servers
    <models mount of the cluster>/<deployment id>/model/        the weights
    <models mount of the cluster>/<deployment id>/adapters/     by id

Files are hard links where the file system allows. No link leads out of a folder of weights, and staged files
are compared with the digest of the inspection.
"""

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath

from neocloud.core.osfiles import make_folder
from neocloud.core.untrusted.files import Folder, remove_tree
from neocloud.core.untrusted.trees import stage_files
from neocloud.messages.neocloud.inference.v1 import Model, ModelStatus
from neocloud.services.inference.public import ModelFolders, WeightsGone, check_weights
from neocloud.services.inference.types import ADAPTER_WEIGHTS

KEY, MODEL, ADAPTERS = "key", "model", "adapters"
ADAPTER_FILES = ("adapter_config.json", ADAPTER_WEIGHTS)


async def stage_adapters(folders: ModelFolders, target: Path, adapters: Mapping[str, Model]) -> None:
    """Make the folder hold these adapters, by id. Others stay until `prune_adapters`.

    Raises WeightsGone when the files of one are not those that were inspected; OSError.
    """
    await asyncio.to_thread(_stage, folders, target, adapters)


async def prune_adapters(target: Path, keep: Collection[str]) -> None:
    """Remove all adapters from the folder but those with these ids."""
    await asyncio.to_thread(_prune, target, keep)


def _stage(folders: ModelFolders, target: Path, adapters: Mapping[str, Model]) -> None:
    make_folder(target)
    for adapter_id, model in adapters.items():
        if (target / adapter_id).exists():
            continue
        try:
            with folders.locate_known(model).folder() as source, Folder.open(target) as staging:
                _stage_one(source, staging, adapter_id, model.status)
        except WeightsGone as error:
            raise WeightsGone(f"{model.metadata.name}: {error}") from error


def _stage_one(source: Folder, staging: Folder, adapter_id: str, status: ModelStatus) -> None:
    """Copy one adapter, whole or not at all."""
    with staging.staged(adapter_id) as staged:
        for name in ADAPTER_FILES:
            source.copy_file(name, staged, name, link=True, inner_links=True)
        check_weights(staged, status)


def _prune(target: Path, keep: Collection[str]) -> None:
    if not target.is_dir():
        return
    with Folder.open(target) as staged:
        for name in staged.names():
            if name not in keep:
                staged.remove(name)


class JobFiles:
    """The files of one deployment: their paths on this machine and in its jobs. Methods block."""

    def __init__(self, source: Path, mount_path: str, deployment_id: str) -> None:
        """`source` is the cluster's models folder on this machine; its workers mount it at `mount_path`."""
        self._here = source / deployment_id
        self._there = PurePosixPath(mount_path) / deployment_id

    @property
    def key(self) -> str:
        return str(self._there / KEY)

    @property
    def model(self) -> str:
        return str(self._there / MODEL)

    def adapter(self, adapter_id: str) -> str:
        return str(self._there / ADAPTERS / adapter_id)

    def stage(self, folders: ModelFolders, model: Model, key: bytes) -> None:
        """Put the model's weights and the key there. May be repeated. Raises WeightsGone; OSError."""
        make_folder(self._here.parent)
        with Folder.open(self._here.parent) as parent, parent.make(self._here.name) as here:
            if not here.has_file(KEY) or here.read(KEY) != key:
                here.write(KEY, key, 0o400)
        if folders.reads_files and not (self._here / MODEL).exists():
            with folders.locate_known(model).folder() as weights:
                stage_files(
                    weights, self._here / MODEL, lambda staged: check_weights(staged, model.status), link=True
                )

    def stage_adapter(self, adapter_id: str, source: Path) -> None:
        """Copy an adapter that was staged and checked on this machine. Raises OSError."""
        make_folder(self._here)
        make_folder(self._here / ADAPTERS)
        with Folder.open(source) as adapter:
            stage_files(adapter, self._here / ADAPTERS / adapter_id, link=True)

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            remove_tree(self._here)
