"""What a model's folder says, as the status that users see. The control plane's only look at weights."""

import asyncio
from typing import Any, Protocol

from neocloud.core.untrusted_files import UnsafePath
from neocloud.core.untrusted_trees import content_digest
from neocloud.messages.neocloud.inference.v1 import ModelStatus
from neocloud.services.inference.reconcile.adapter import read_adapter
from neocloud.services.inference.reconcile.safetensors import BadWeights
from neocloud.services.inference.reconcile.weights import read_weights
from neocloud.services.inference.resources import ADAPTER_WEIGHTS, Location, weights_digest


class ModelReader(Protocol):
    reads_files: bool
    """False: it pretends, so nothing needs to be fetched or to lie in an open folder."""

    async def read(self, folder: Location, base_folder: Location | None) -> Any:
        """The facts of a ModelStatus, an adapter's where there is a base. Raises BadWeights."""
        ...


class FolderReader:
    """Reads real folders, in a thread: hashing takes seconds for each ten gigabytes."""

    reads_files = True

    async def read(self, folder: Location, base_folder: Location | None) -> Any:
        try:
            if base_folder is None:
                return await asyncio.to_thread(_model, folder)
            return await asyncio.to_thread(_adapter, folder, base_folder)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise BadWeights(f"{folder} is no folder on this machine") from error
        except UnsafePath as error:
            raise BadWeights(str(error)) from error
        except OSError as error:
            raise BadWeights(
                f"{error.filename or folder} cannot be read: {error.strerror or error}"
            ) from error


def _model(location: Location) -> Any:
    with location.folder() as folder:
        found = read_weights(folder)
        digest = weights_digest(folder)
    return ModelStatus(
        architecture=found.architecture.name,
        context_length=found.architecture.context_length,
        parameters=found.parameters,
        size_bytes=found.size_bytes,
        dtype=found.dtype,
        kv_bytes_per_token=found.architecture.kv_bytes_per_token,
        adapter_bytes_per_rank=found.architecture.adapter_bytes_per_rank,
        digest=digest,
        has_chat_template=found.has_chat_template,
        target_modules=sorted(found.adaptable_modules),
    )


def _adapter(location: Location, base_location: Location) -> Any:
    with location.folder() as folder, base_location.folder() as base_folder:
        base = read_weights(base_folder)
        found = read_adapter(folder, base)
        digest = content_digest(folder, [ADAPTER_WEIGHTS])
    return ModelStatus(
        architecture=base.architecture.name,
        context_length=base.architecture.context_length,
        parameters=found.parameters,
        size_bytes=found.size_bytes,
        dtype=found.dtype,
        lora_rank=found.rank,
        target_modules=found.target_modules,
        digest=digest,
        has_chat_template=base.has_chat_template,
    )
