"""Adapters: laid where a deployment's engines can read them, and loaded into those that run.

Engines read one folder of the machine, so an adapter that comes later needs no new pod. What lies there are
hard links where the file system allows: no second copy.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neocloud.core.osfiles import make_folder
from neocloud.core.untrusted_files import Folder
from neocloud.services.inference.reconcile.engine_client import EngineClient, EngineRefused
from neocloud.services.inference.reconcile.scope import Scope
from neocloud.services.inference.resources import (
    ADAPTER_WEIGHTS,
    ModelFolders,
    WeightsGone,
    check_weights,
)

ADAPTER_FILES = ("adapter_config.json", ADAPTER_WEIGHTS)


async def lay(folders: ModelFolders, target: Path, wanted: Mapping[str, Any]) -> None:
    """Make the folder hold these adapters, Model messages by id. Others stay until `tidy`.

    Raises WeightsGone when one is not what was looked at any more; OSError.
    """
    await asyncio.to_thread(_lay, folders, target, wanted)


async def tidy(target: Path, wanted: Mapping[str, Path]) -> None:
    """Take away what no engine has loaded any more."""
    await asyncio.to_thread(_tidy, target, set(wanted))


async def load_into(
    client: EngineClient, scope: Scope, address: str, paths: Mapping[str, str]
) -> tuple[list[str], str]:
    """Bring one engine's adapters to those wanted (name to path). What it has then, and what went wrong or
    ""."""
    key = scope.engine_key.decode()
    there = await client.names(address, key) - {scope.served_name}
    for name in sorted(there - paths.keys()):
        await client.unload(address, key, name)
    loaded, refusals = sorted(there & paths.keys()), []
    for name in sorted(paths.keys() - there):
        try:
            await client.load(address, key, name, paths[name])
            await client.warm_up(address, key, name)
            loaded.append(name)
        except EngineRefused as error:
            refusals.append(f"{name} was not loaded: {error}")
    return sorted(loaded), "; ".join(refusals)


def _lay(folders: ModelFolders, target: Path, wanted: Mapping[str, Any]) -> None:
    make_folder(target)
    for adapter_id, model in wanted.items():
        if (target / adapter_id).exists():
            continue
        try:
            with folders.locate_known(model).folder() as source, Folder.open(target) as place:
                _lay_one(source, place, adapter_id, model.status)
        except WeightsGone as error:
            raise WeightsGone(f"{model.metadata.name}: {error}") from error


def _lay_one(source: Folder, place: Folder, adapter_id: str, status: Any) -> None:
    """Copy one adapter, whole or not at all."""
    with place.staged(adapter_id) as staged:
        for name in ADAPTER_FILES:
            source.copy_file(name, staged, name, link=True, inner_links=True)
        check_weights(staged, status)


def _tidy(target: Path, wanted: set[str]) -> None:
    if not target.is_dir():
        return
    with Folder.open(target) as laid:
        for name in laid.names():
            if name not in wanted:
                laid.remove(name)
