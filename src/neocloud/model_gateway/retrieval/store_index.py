"""One vector store on disk: chunks, vectors and words in SQLite, and above a size an HNSW index.

Used in the index process alone. Calls of several threads take turns.
"""

import sqlite3
import threading
import unicodedata
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from neocloud.core.sqlite_file import open_file, transaction
from neocloud.model_gateway.retrieval.hnsw import HnswIndex, Ids, Vectors
from neocloud.model_gateway.retrieval.index_calls import Hit, IndexRefusal, Search
from neocloud.model_gateway.retrieval.ranking import fused, query_terms, rarity

MIGRATIONS = (
    """
CREATE TABLE files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    file_id TEXT NOT NULL UNIQUE,
    is_read INTEGER NOT NULL DEFAULT 0,
    is_ready INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    file INTEGER NOT NULL,
    text TEXT NOT NULL,
    vector BLOB
);
CREATE INDEX chunks_of_file ON chunks (file);
CREATE TABLE properties (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE VIRTUAL TABLE words USING fts5 (
    text, content='chunks', content_rowid='id', tokenize='unicode61 remove_diacritics 2'
);
CREATE VIRTUAL TABLE word_counts USING fts5vocab (words, row)
""",
)
EXACT_CHUNKS = 20_000
"""Up to so many chunks are compared one by one."""
BLOCK = 4096
READ_ROWS = 200
ADD_ROWS = 50
"""Vectors that are added to HNSW while searches of the store wait."""
MAX_DEPTH = 400
"""Most candidates of one ranking."""
FREQUENT_SHARE = 0.2
"""Words that more than this share of the chunks have say nothing, and cost much."""


class StoreIndex:
    def __init__(self, folder: Path, *, exact_chunks: int = EXACT_CHUNKS) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._exact_chunks = exact_chunks
        self._rows = open_file(folder / "store.db", MIGRATIONS, timeout_seconds=30)
        self._rows.execute("PRAGMA secure_delete = ON")
        self._turn = threading.RLock()
        self._ready: tuple[Ids, Ids] | None = None
        """The ids of all chunks that are visible, and their files; None: they are to be read."""
        self._matrix: Vectors | None = None
        """Their vectors, where there are few."""
        self._hnsw: HnswIndex | None = None

    def close(self) -> None:
        with self._turn:
            self._rows.close()

    @property
    def cached_bytes(self) -> int:
        return 0 if self._matrix is None else self._matrix.nbytes

    def forget_cache(self) -> None:
        with self._turn:
            self._ready = self._matrix = None

    @contextmanager
    def _writing(self) -> Generator[sqlite3.Connection]:
        with self._turn, transaction(self._rows):
            yield self._rows

    def _number(self, file_id: str) -> int:
        row = self._rows.execute("SELECT number FROM files WHERE file_id = ?", (file_id,)).fetchone()
        return row[0] if row else 0

    def read_file(self, file_id: str, chunks: Callable[[], Iterable[str]]) -> int:
        """Store the chunks of a file, unless they are stored, and return their number."""
        with self._turn:
            found = self._rows.execute(
                "SELECT number FROM files WHERE file_id = ? AND is_read", (file_id,)
            ).fetchone()
            if found is None:
                self.remove_file(file_id)
                with self._writing() as rows:
                    rows.execute("INSERT INTO files (file_id) VALUES (?)", (file_id,))
        if found is None:
            batch: list[str] = []
            for chunk in chunks():
                batch.append(chunk)
                if len(batch) == READ_ROWS:
                    self._insert(file_id, batch)
                    batch = []
            self._insert(file_id, batch)
            with self._writing() as rows:
                rows.execute("UPDATE files SET is_read = 1 WHERE file_id = ?", (file_id,))
        with self._turn:
            query = "SELECT count(*) FROM chunks WHERE file = ?"
            return self._rows.execute(query, (self._number(file_id),)).fetchone()[0]

    def _insert(self, file_id: str, texts: Sequence[str]) -> None:
        with self._writing() as rows:
            number = self._number(file_id)
            if not number:
                raise IndexRefusal("removed", f"The file {file_id} was removed.")
            for text in texts:
                done = rows.execute("INSERT INTO chunks (file, text) VALUES (?, ?)", (number, text))
                rows.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (done.lastrowid, text))

    def pending(self, file_id: str, most: int) -> list[tuple[int, str]]:
        query = "SELECT id, text FROM chunks WHERE file = ? AND vector IS NULL ORDER BY id LIMIT ?"
        with self._turn:
            return [(row[0], row[1]) for row in self._rows.execute(query, (self._number(file_id), most))]

    def put_vectors(self, file_id: str, vectors: Sequence[tuple[int, bytes]]) -> None:
        """Raises IndexRefusal for vectors that are none, or of another size than those that are there."""
        matrix = checked([vector for _, vector in vectors])
        with self._writing() as rows:
            self._check_dimensions(matrix.shape[1])
            number = self._number(file_id)
            for (chunk, _), vector in zip(vectors, matrix, strict=True):
                rows.execute(
                    "UPDATE chunks SET vector = ? WHERE id = ? AND file = ?",
                    (vector.tobytes(), chunk, number),
                )

    def _check_dimensions(self, found: int) -> None:
        self._rows.execute("INSERT OR IGNORE INTO properties VALUES ('dimensions', ?)", (found,))
        known = self._dimensions()
        if found != known:
            raise IndexRefusal(
                "server_error",
                f"The embedding model returned vectors of {found} numbers, and the vector store has"
                f" vectors of {known}. Its model was replaced: create a new vector store.",
            )

    def _dimensions(self) -> int:
        row = self._rows.execute("SELECT value FROM properties WHERE name = 'dimensions'").fetchone()
        return row[0] if row else 0

    def finish_file(self, file_id: str) -> int:
        """Make the file visible, index it, and return the bytes that it takes."""
        with self._writing() as rows:
            number = self._number(file_id)
            done = rows.execute("UPDATE files SET is_ready = 1 WHERE number = ? AND is_read", (number,))
            if not done.rowcount:
                raise IndexRefusal("removed", f"The file {file_id} was removed.")
            self._ready = self._matrix = None
            taken = "length(CAST(text AS BLOB)) + length(vector)"
            query = f"SELECT coalesce(sum({taken}), 0) FROM chunks WHERE file = ?"  # nosec B608
            size = rows.execute(query, (number,)).fetchone()[0]
        self.index()
        return size

    def remove_file(self, file_id: str) -> None:
        with self._writing() as rows:
            number = self._number(file_id)
            if not number:
                return
            ids = [row[0] for row in rows.execute("SELECT id FROM chunks WHERE file = ?", (number,))]
            rows.execute(
                "INSERT INTO words (words, rowid, text) SELECT 'delete', id, text FROM chunks WHERE file = ?",
                (number,),
            )
            rows.execute("DELETE FROM chunks WHERE file = ?", (number,))
            rows.execute("DELETE FROM files WHERE number = ?", (number,))
            self._ready = self._matrix = None
        if self._hnsw is not None and ids:
            with self._turn:
                self._hnsw.remove(np.array(ids, dtype=np.int64))

    def keep_files(self, file_ids: Collection[str]) -> None:
        with self._turn:
            known = [row[0] for row in self._rows.execute("SELECT file_id FROM files")]
        for file_id in set(known) - set(file_ids):
            self.remove_file(file_id)

    def texts(self, file_id: str) -> list[str]:
        query = "SELECT text FROM chunks WHERE file = ? ORDER BY id"
        with self._turn:
            return [row[0] for row in self._rows.execute(query, (self._number(file_id),))]

    def index(self) -> None:
        """Add to the HNSW index what it lacks, if the store is large. Searches are served meanwhile."""
        with self._turn:
            ids, _ = self._visible()
            if len(ids) <= self._exact_chunks:
                return
            hnsw = self._opened_hnsw()
            missing = ids[~hnsw.has(ids)]
        for start in range(0, len(missing), ADD_ROWS):
            with self._turn:
                found, vectors = self._vectors(missing[start : start + ADD_ROWS])
                if len(found):
                    hnsw.add(found, vectors)
        with self._turn:
            hnsw.save_if_grown()

    def _opened_hnsw(self) -> HnswIndex:
        if self._hnsw is None:
            self._hnsw = HnswIndex(self._folder, self._dimensions())
        return self._hnsw

    def _visible(self) -> tuple[Ids, Ids]:
        if self._ready is None:
            query = (
                "SELECT chunks.id, file FROM chunks JOIN files ON files.number = chunks.file"
                " WHERE is_ready AND vector IS NOT NULL ORDER BY chunks.id"
            )
            rows = np.array(self._rows.execute(query).fetchall(), dtype=np.int64).reshape(-1, 2)
            self._ready = np.ascontiguousarray(rows[:, 0]), np.ascontiguousarray(rows[:, 1])
        return self._ready

    def _vectors(self, ids: Ids) -> tuple[Ids, Vectors]:
        """Return the vectors of chunks that are still there, with their ids."""
        rows: list[tuple[int, bytes]] = []
        for start in range(0, len(ids), READ_ROWS):
            some = [int(each) for each in ids[start : start + READ_ROWS]]
            marks = ",".join("?" * len(some))
            query = f"SELECT id, vector FROM chunks WHERE id IN ({marks}) AND vector IS NOT NULL"  # nosec B608
            rows += self._rows.execute(query, some).fetchall()
        found = np.array([row[0] for row in rows], dtype=np.int64)
        data = b"".join(row[1] for row in rows)
        return found, np.frombuffer(data, dtype=np.float32).reshape(len(rows), -1 if rows else 0)

    def search(self, query: Search, allowed: Collection[str] | None) -> list[Hit]:
        """Search the visible chunks, of the allowed files or of all. Raises IndexRefusal."""
        vectors = checked(query.vectors)
        depth = min(MAX_DEPTH, max(50, 4 * query.most))
        with self._turn:
            ids, files = self._visible()
            if not len(ids):
                return []
            self._check_dimensions(vectors.shape[1])
            numbers = self._numbers(allowed)
            candidates: set[int] = set()
            words = [
                self._with_words(text, numbers, depth, len(ids)) if query.word_weight else {}
                for text in query.texts
            ]
            for vector, shares in zip(vectors, words, strict=True):
                candidates.update(shares)
                if query.vector_weight:
                    candidates.update(self._nearest(vector, ids, files, numbers, depth))
            found, matrix = self._vectors(np.array(sorted(candidates), dtype=np.int64))
            if not len(found):
                return []
            similarities = matrix @ vectors.T
            ranks = fused(found, similarities, words, (query.vector_weight, query.word_weight))
            scores = np.clip(similarities.max(axis=1), 0.0, 1.0)
            order = np.argsort(-ranks, kind="stable")
            chosen = order[scores[order] >= query.least_score][: query.most]
            return [self._hit(int(found[at]), float(scores[at])) for at in chosen.tolist()]

    def _hit(self, chunk: int, score: float) -> Hit:
        text, file_id = self._rows.execute(
            "SELECT text, file_id FROM chunks JOIN files ON files.number = chunks.file WHERE id = ?", (chunk,)
        ).fetchone()
        return Hit(file_id, text, score)

    def _numbers(self, allowed: Collection[str] | None) -> Ids | None:
        if allowed is None:
            return None
        known = self._rows.execute("SELECT file_id, number FROM files WHERE is_ready")
        return np.array([number for file_id, number in known if file_id in allowed], dtype=np.int64)

    def _nearest(self, vector: Vectors, ids: Ids, files: Ids, numbers: Ids | None, depth: int) -> list[int]:
        """Return the ids of the nearest chunks: exactly among few, by HNSW among many."""
        wanted = ids if numbers is None else ids[np.isin(files, numbers)]
        if len(ids) <= self._exact_chunks:
            if self._matrix is None:
                self._matrix = self._vectors_in_order(ids)
            scores = self._matrix @ vector
            if numbers is not None:
                scores = np.where(np.isin(files, numbers), scores, -2.0)
            return best(ids, scores, min(depth, len(wanted)))
        hnsw = self._opened_hnsw()
        if len(wanted) <= self._exact_chunks:
            return self._scanned(wanted, vector, depth)
        share = len(wanted) / len(ids)
        found = hnsw.search(vector, min(int(depth / share) + depth, len(ids)))
        found = found[np.isin(found, wanted)]
        tail = wanted[~hnsw.has(wanted)] if len(hnsw) < len(ids) else wanted[:0]
        return self._scanned(np.concatenate([found, tail]), vector, depth)

    def _vectors_in_order(self, ids: Ids) -> Vectors:
        found, matrix = self._vectors(ids)
        return np.ascontiguousarray(matrix[np.argsort(found)])

    def _scanned(self, ids: Ids, vector: Vectors, depth: int) -> list[int]:
        """Compare block by block, and keep the best."""
        kept_ids, kept = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
        for start in range(0, len(ids), BLOCK):
            found, matrix = self._vectors(ids[start : start + BLOCK])
            if not len(found):
                continue
            kept_ids = np.concatenate([kept_ids, found])
            kept = np.concatenate([kept, matrix @ vector])
            top = np.argsort(-kept, kind="stable")[:depth]
            kept_ids, kept = kept_ids[top], kept[top]
        return kept_ids.tolist()

    def _with_words(self, text: str, numbers: Ids | None, depth: int, chunks: int) -> dict[int, float]:
        """Return chunks with words of the text: what share of the words they have, by rarity."""
        counts = {term: self._count_with(term) for term in query_terms(text)}
        counts = {term: count for term, count in counts.items() if count <= FREQUENT_SHARE * chunks + 1}
        total = sum(rarity(chunks, count) for count in counts.values())
        if not any(counts.values()):
            return {}
        where, values = "", list[object]([" OR ".join(f'"{term}"' for term in counts)])
        if numbers is not None:
            where = "AND files.number IN (SELECT value FROM json_each(?))"
            values.append(str(numbers.tolist()))
        query = (
            "SELECT chunks.id, bm25(words) FROM words JOIN chunks ON chunks.id = words.rowid"  # nosec B608
            " JOIN files ON files.number = chunks.file"
            f" WHERE words MATCH ? AND is_ready {where} ORDER BY bm25(words) LIMIT ?"
        )
        found = self._rows.execute(query, [*values, depth])
        return {row[0]: min(-row[1] / total, 1.0) for row in found}

    def _count_with(self, term: str) -> int:
        """Return how many chunks have a word, written as the tokenizer of FTS5 writes it."""
        letters = unicodedata.normalize("NFKD", term)
        plain = "".join(one for one in letters if not unicodedata.combining(one))
        row = self._rows.execute("SELECT doc FROM word_counts WHERE term = ?", (plain,)).fetchone()
        return row[0] if row else 0


def checked(vectors: Sequence[bytes]) -> Vectors:
    """Return vectors as rows of length 1. Raises IndexRefusal for what is not finite, or of two sizes."""
    sizes = {len(vector) for vector in vectors}
    if len(sizes) != 1 or sizes == {0} or any(size % 4 for size in sizes):
        raise IndexRefusal("server_error", "The embedding model returned vectors of different sizes.")
    matrix = np.frombuffer(b"".join(vectors), dtype="<f4").reshape(len(vectors), -1).astype(np.float32)
    if not np.isfinite(matrix).all():
        raise IndexRefusal(
            "server_error", "The embedding model returned vectors that are not finite numbers."
        )
    largest = np.abs(matrix).max(axis=1, keepdims=True)
    scaled = np.divide(matrix, largest, out=np.zeros_like(matrix), where=largest > 0)  # squares stay finite
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    return np.divide(scaled, lengths, out=np.zeros_like(scaled), where=lengths > 0).astype(np.float32)


def best(ids: Ids, scores: Vectors, most: int) -> list[int]:
    if most <= 0:
        return []
    top = np.argpartition(-scores, most - 1)[:most]
    return ids[top[np.argsort(-scores[top], kind="stable")]].tolist()
