# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
"""The HNSW index of one store: keys are ids of chunks. Its file is derived, and made again when it is lost.

A file is loaded only if its digest is the one that was written beside it: the library trusts what it loads.
"""

import json
import logging
from hashlib import file_digest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from usearch.index import Index as UsearchIndex

from neocloud.core.osfiles import write_file

logger = logging.getLogger(__name__)
CONNECTIVITY, EXPANSION_ADD, EXPANSION_SEARCH = 16, 128, 96
LEAST_SAVED, SAVED_SHARE = 1000, 0.05
Ids = NDArray[np.int64]
Vectors = NDArray[np.float32]


class HnswIndex:
    def __init__(self, folder: Path, dimensions: int) -> None:
        """Load the index of the folder if it is whole; else begin an empty one."""
        self._file = folder / "index.usearch"
        self._digest = folder / "index.json"
        self._dimensions = dimensions
        self._index = self._empty()
        self._unsaved = 0
        self._load()

    def __len__(self) -> int:
        return len(self._index)

    def _empty(self) -> UsearchIndex:
        return UsearchIndex(
            ndim=self._dimensions,
            metric="ip",  # of vectors of length 1: the cosine
            dtype="f16",  # candidates are compared again with the vectors themselves
            connectivity=CONNECTIVITY,
            expansion_add=EXPANSION_ADD,
            expansion_search=EXPANSION_SEARCH,
        )

    def _load(self) -> None:
        try:
            known = json.loads(self._digest.read_text())
            with self._file.open("rb") as file:
                is_whole = file_digest(file, "sha256").hexdigest() == known["sha256"]
            if is_whole and known["dimensions"] == self._dimensions:
                self._index.load(str(self._file))
                return
            logger.warning("%s is damaged; it is made again", self._file)
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            logger.warning("%s cannot be loaded and is made again: %s", self._file, error)
        self._index = self._empty()

    def save_if_grown(self) -> None:
        """Write the index when a share of it is new; what a restart loses is added again."""
        if self._unsaved >= max(LEAST_SAVED, len(self) * SAVED_SHARE):
            self.save()

    def save(self) -> None:
        """Write the index. A crash meanwhile leaves a file that does not load."""
        partial = self._file.with_name("index.partial")
        self._index.save(str(partial))
        with partial.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        partial.replace(self._file)
        write_file(self._digest, json.dumps({"sha256": digest, "dimensions": self._dimensions}))
        self._unsaved = 0

    def has(self, ids: Ids) -> NDArray[np.bool_]:
        """Return for each id whether it is indexed."""
        if not len(ids) or not len(self._index):
            return np.zeros(len(ids), dtype=np.bool_)
        return np.asarray(self._index.contains(ids), dtype=np.bool_)

    def add(self, ids: Ids, vectors: Vectors) -> None:
        self._index.add(ids, vectors, threads=1)
        self._unsaved += len(ids)

    def remove(self, ids: Ids) -> None:
        present = ids[self.has(ids)]
        if len(present):
            self._index.remove(present)

    def search(self, vector: Vectors, most: int) -> Ids:
        """Return the ids of about the nearest vectors, the nearest first."""
        if not len(self._index):
            return np.empty(0, dtype=np.int64)
        found = self._index.search(vector, most, threads=1)
        return np.asarray(found.keys).astype(np.int64)
