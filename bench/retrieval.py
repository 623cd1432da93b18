#!/usr/bin/env python3
"""Compare searches of a vector store: HNSW with exact search, and vectors with words.

    python bench/retrieval.py [--chunks 50000] [--queries 200] [--model FOLDER]

1. Vectors of 384 numbers in clusters, as those of texts about a few hundred topics are. For each query: how
   many of the ten nearest chunks HNSW finds (recall), and how much faster the search is, in one thread.
2. With --model (the folder of all-MiniLM-L6-v2, `neo image build all-minilm-l6-v2`): the answers of the
   demo's bank as documents, and its test questions, which are worded otherwise. For each way to rank: how
   often the right document is first, and among the first three.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from neocloud.model_gateway.retrieval.index_calls import Search  # noqa: E402
from neocloud.model_gateway.retrieval.inputs import WORD_WEIGHT  # noqa: E402
from neocloud.model_gateway.retrieval.store_index import StoreIndex  # noqa: E402

DIMENSIONS, TOPICS, SPREAD, NEAREST = 384, 300, 0.6, 10
LEAST_RECALL = 0.95
WAYS = {"vectors": (1.0, 0.0), "words": (0.0, 1.0), "both": (1.0, WORD_WEIGHT)}
Embed = Callable[[list[str]], list[bytes]]


def search(store: StoreIndex, text: str, vector: bytes, weights: tuple[float, float], most: int) -> list[str]:
    call = Search("vs", [text], [vector], most, vector_weight=weights[0], word_weight=weights[1])
    return [hit.text for hit in store.search(call, None)]


def recall(chunks: int, queries: int) -> bool:
    random = np.random.default_rng(7)
    centres = random.normal(size=(TOPICS, DIMENSIONS))

    def near(count: int) -> np.ndarray:
        found = centres[random.integers(0, TOPICS, count)] + SPREAD * random.normal(size=(count, DIMENSIONS))
        return found.astype(np.float32)

    with tempfile.TemporaryDirectory() as folder:
        store = StoreIndex(Path(folder), exact_chunks=chunks)
        store.read_file("file", lambda: (f"chunk {number}" for number in range(chunks)))
        for vector in np.array_split(near(chunks), max(chunks // 1000, 1)):
            pending = store.pending("file", len(vector))
            store.put_vectors(
                "file", [(each[0], row.tobytes()) for each, row in zip(pending, vector, strict=True)]
            )
        store.finish_file("file")
        asked = [vector.tobytes() for vector in near(queries)]
        exact, exact_ms = timed(store, asked)
        store._exact_chunks = NEAREST
        began = time.perf_counter()
        store.index()
        built = time.perf_counter() - began
        found, hnsw_ms = timed(store, asked)
    share = statistics.mean(
        len(set(one) & set(other)) / NEAREST for one, other in zip(found, exact, strict=True)
    )
    print(f"{chunks:,} chunks of {DIMENSIONS} numbers, {queries} queries; HNSW was built in {built:.0f} s")
    print(f"exact {exact_ms:.2f} ms, HNSW {hnsw_ms:.2f} ms: {exact_ms / hnsw_ms:.1f} times as fast")
    print(f"recall of the {NEAREST} nearest: {share:.3f} (aim {LEAST_RECALL})")
    return share >= LEAST_RECALL


def timed(store: StoreIndex, asked: list[bytes]) -> tuple[list[list[str]], float]:
    """Return what is found, and the median milliseconds of a search."""
    search(store, "x", asked[0], (1.0, 0.0), NEAREST)
    found, times = [], []
    for vector in asked:
        began = time.perf_counter()
        found.append(search(store, "x", vector, (1.0, 0.0), NEAREST))
        times.append((time.perf_counter() - began) * 1000)
    return found, statistics.median(times)


def embedder(model: Path) -> Embed:
    """Return a function that makes the model's vectors: the mean of its last layer, without a server."""
    import torch  # noqa: PLC0415
    from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415

    tokenizer, network = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model).eval()

    def embed(texts: list[str]) -> list[bytes]:
        tokens = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
        with torch.no_grad():
            layer = network(**tokens).last_hidden_state.float()
        mask = tokens["attention_mask"].unsqueeze(-1)
        return [row.numpy().tobytes() for row in (layer * mask).sum(1) / mask.sum(1)]

    return embed


def bank(embed: Embed) -> None:
    """Print how often the document of a question's topic is found."""
    phrases = json.loads((ROOT / "recipes" / "bank_topics.json").read_text())
    topics = phrases["topics"]
    with tempfile.TemporaryDirectory() as folder:
        store = StoreIndex(Path(folder))
        for topic in topics:
            text = topic["advisor"][0]
            store.read_file(topic["topic"], lambda text=text: [text])
            [(number, _)] = store.pending(topic["topic"], 1)
            store.put_vectors(topic["topic"], [(number, embed([text])[0])])
            store.finish_file(topic["topic"])
        slots = {slot: choices[0] for slot, choices in phrases["slots"].items()}
        questions = [(each.format(**slots), topic["topic"]) for topic in topics for each in topic["unseen"]]
        print(f"{len(topics)} documents of a bank, {len(questions)} questions in other words")
        for name, weights in WAYS.items():
            first = third = 0
            for question, right in questions:
                call = Search(
                    "vs", [question], embed([question]), 3, vector_weight=weights[0], word_weight=weights[1]
                )
                files = [hit.file_id for hit in store.search(call, None)]
                first += files[:1] == [right]
                third += right in files
            print(f"{name}: {first / len(questions):.2f} first, {third / len(questions):.2f} among three")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, default=50_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--model", type=Path)
    options = parser.parse_args()
    is_near = recall(options.chunks, options.queries)
    if options.model:
        bank(embedder(options.model))
    sys.exit(0 if is_near else 1)


if __name__ == "__main__":
    main()
