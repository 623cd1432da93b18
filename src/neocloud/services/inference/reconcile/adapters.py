"""Adapters: laid where a deployment's engines can read them, and loaded into those that run.

Engines read one folder of the machine, so an adapter that comes later needs no new pod. What lies there are
hard links where the file system allows: no second copy.
"""

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from neocloud.services.inference.reconcile.engine_client import EngineClient, EngineRefused
from neocloud.services.inference.reconcile.scope import Scope

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


async def lay(target: Path, wanted: Mapping[str, Path]) -> None:
    """Make the folder hold these adapters, by id, from their folders. Others stay until `tidy`."""
    await asyncio.to_thread(_lay, target, wanted)


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


def _lay(target: Path, wanted: Mapping[str, Path]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for adapter_id, source in wanted.items():
        place = target / adapter_id
        if place.exists():
            continue
        partial = target / f".{adapter_id}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        for name in ADAPTER_FILES:
            _link(source / name, partial / name)
        partial.rename(place)  # whole or not at all


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system
        shutil.copyfile(source, target)


def _tidy(target: Path, wanted: set[str]) -> None:
    if not target.is_dir():
        return
    for place in target.iterdir():
        if place.name not in wanted:
            shutil.rmtree(place, ignore_errors=True)
