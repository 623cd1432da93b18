"""Adapters in the folder of a deployment, where its model servers read them.

Model servers read one folder of the machine, so an adapter that is added later needs no new pod. Files are
hard links where the file system allows, instead of second copies.
"""

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path

from neocloud.core.osfiles import make_folder
from neocloud.core.untrusted_files import Folder
from neocloud.messages.neocloud.inference.v1 import Model, ModelStatus
from neocloud.services.inference.public import ModelFolders, WeightsGone, check_weights
from neocloud.services.inference.types import ADAPTER_WEIGHTS

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
