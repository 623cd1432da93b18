"""What an engine that runs as a job needs of the machine, in the folder that its cluster's workers see.

Hard links where the file system allows: no second copy of the weights. Blocking; follows no wish of its own.

    <shown folder of the cluster>/<deployment id>/key           bearer token of the engines
    <shown folder of the cluster>/<deployment id>/model/        the weights
    <shown folder of the cluster>/<deployment id>/adapters/     by id

Nothing in a folder of weights is followed out of it, and what was laid is what was looked at, by its digest.
"""

import contextlib
from pathlib import Path, PurePosixPath
from typing import Any

from neocloud.core.osfiles import make_folder
from neocloud.core.untrusted_files import Folder, remove_tree
from neocloud.core.untrusted_trees import stage_files
from neocloud.services.inference.resources import ModelFolders, check_weights

KEY, MODEL, ADAPTERS = "key", "model", "adapters"


class JobFiles:
    """Of one deployment, on the machine and as its jobs see them."""

    def __init__(self, shown: Path, shown_as: str, deployment_id: str) -> None:
        self._here = shown / deployment_id
        self._there = PurePosixPath(shown_as) / deployment_id

    @property
    def key(self) -> str:
        return str(self._there / KEY)

    @property
    def model(self) -> str:
        return str(self._there / MODEL)

    def adapter(self, adapter_id: str) -> str:
        return str(self._there / ADAPTERS / adapter_id)

    def lay(self, folders: ModelFolders, model: Any, key: bytes) -> None:
        """A Model's weights and the key. May be repeated. Raises WeightsGone; OSError."""
        make_folder(self._here.parent)
        with Folder.open(self._here.parent) as shown, shown.make(self._here.name) as here:
            if not here.has_file(KEY) or here.read(KEY) != key:
                here.write(KEY, key, 0o400)
        if folders.reads_files and not (self._here / MODEL).exists():
            with folders.locate_known(model).folder() as weights:
                stage_files(
                    weights, self._here / MODEL, lambda laid: check_weights(laid, model.status), link=True
                )

    def lay_adapter(self, adapter_id: str, source: Path) -> None:
        """From where the cloud itself has laid it, and looked at it. Raises OSError."""
        make_folder(self._here)
        make_folder(self._here / ADAPTERS)
        with Folder.open(source) as adapter:
            stage_files(adapter, self._here / ADAPTERS / adapter_id, link=True)

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            remove_tree(self._here)
