"""An embedding model for tests: words are hashed to numbers, so texts with the same words are near."""

import re
from array import array
from collections.abc import Sequence
from hashlib import blake2b

from neocloud.model_gateway.api.errors import OpenAiError, bad_request
from neocloud.model_gateway.authentication import Caller

DIMENSIONS = 64


def vector_of(text: str) -> bytes:
    numbers = [0.0] * DIMENSIONS
    for word in re.findall(r"\w+", text.lower()):
        digest = blake2b(word.encode(), digest_size=4).digest()
        numbers[digest[0] % DIMENSIONS] += 1.0 if digest[1] % 2 else -1.0
    return array("f", numbers).tobytes()


class WordEmbedder:
    """Notes who asked for what. `failures` are raised first, one by one; `answer` replaces vectors."""

    def __init__(self) -> None:
        self.calls: list[tuple[Caller, str, str, list[str]]] = []
        self.failures: list[OpenAiError] = []
        self.answer: bytes | None = None
        self.context = 0

    async def embed(
        self,
        caller: Caller,
        project_id: str,
        model: str,
        texts: Sequence[str],
        *,
        wait_seconds: float = 0.0,
        is_batch: bool = False,
    ) -> list[bytes]:
        self.calls.append((caller, project_id, model, list(texts)))
        if self.failures:
            raise self.failures.pop(0)
        return [self.answer or vector_of(text) for text in texts]

    def model_of(self, caller: Caller, requested: str) -> str:
        if requested not in ("", "words"):
            raise bad_request(f"There is no embedding model {requested!r}.", param="neocloud.embedding_model")
        return "words"

    def context_length(self, caller: Caller, model: str) -> int:
        return self.context
