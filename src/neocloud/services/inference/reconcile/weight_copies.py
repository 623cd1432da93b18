"""Copies of weights in buckets and registries, made as the account that added the model: whole or not at all.

Names and sizes are chosen by anyone who writes there. A copy has no folders, and its files have plain names.
"""

import asyncio
import re
import shutil

from neocloud.core.untrusted.files import Folder
from neocloud.messages.neocloud.inference.v1 import Model
from neocloud.services.inference.public import ModelFolders
from neocloud.services.registry.public import CannotPull, ImagePulls, PullProblem
from neocloud.services.storage.public import ObjectLocation, ObjectReads, folder_place

MAX_OBJECTS = 1000
"""Below the prefix of a model in a bucket."""
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
"""Names of the objects that are copied: a model has no folders in its folder."""
FREE_BYTES = 2 * 1024**3
"""Room on the disk that copies leave for the rest of the cloud."""


class NoRoom(Exception):
    """The disk that holds the models has less free space than copies leave; the message says what to do."""


class WeightCopies:
    def __init__(self, folders: ModelFolders, reads: ObjectReads, pulls: ImagePulls) -> None:
        self._folders = folders
        self._reads = reads
        self._pulls = pulls

    async def is_there(self, model_id: str) -> bool:
        return await asyncio.to_thread(self._folders.of_model(model_id).exists)

    async def copy(self, model: Model) -> None:
        """Raises Unreadable; CannotPull; NoRoom; OSError."""
        target = self._folders.of_model(model.metadata.id)
        await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
        with Folder.open(target.parent) as models, models.staged(target.name) as folder:
            if model.spec.source.HasField("artifact"):
                await self._pull(model, folder)
            else:
                await self._read(model, folder)

    async def artifact_digest(self, model_id: str) -> str:
        """Return the digest of what the tag of the model's artifact is for now. Raises CannotPull, also for
        what has no files."""
        digest, _ = await self._pulls.files(model_id)
        return digest

    async def _read(self, model: Model, folder: Folder) -> None:
        source, model_id = model.spec.source.object, model.metadata.id
        place = folder_place(source.bucket, source.prefix)
        names = await self._reads.names(model_id, place, MAX_OBJECTS)
        for name in filter(FILE_NAME.fullmatch, names):
            with folder.new_file(name) as file:
                each = ObjectLocation(place.bucket, place.key + name)
                await self._reads.fetch(model_id, each, file, self._room())

    async def _pull(self, model: Model, folder: Folder) -> None:
        model_id = model.metadata.id
        _, files = await self._pulls.files(model_id, model.status.artifact_digest)
        self._check_room(sum(each.size_bytes for each in files))
        for each in files:
            self._check_room(each.size_bytes)
            with folder.new_file(each.name) as file:
                await self._pulls.fetch(model_id, each, file)

    def _check_room(self, size: int) -> None:
        room = self._room()
        if size > room:
            raise CannotPull(
                PullProblem.TOO_LARGE, f"The artifact has {size:,} bytes; at most {room:,} are copied."
            )

    def _room(self) -> int:
        free = shutil.disk_usage(self._folders.own).free
        if free <= FREE_BYTES:
            raise NoRoom(
                f"the disk with the models has {free:,} bytes free, and {FREE_BYTES:,} stay free for the"
                " rest of the cloud: remove what is not needed, or the operator adds a disk"
            )
        return free - FREE_BYTES
