"""Client of one model of an OpenAI-compatible API: answers, prompt log-probabilities, generation speed."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TypeVar

from neocloud.cli.evaluation.conversations import Conversation, Token, prompt_tokens
from neocloud.cli.output import JsonObject
from neocloud.client.errors import ClientError
from neocloud.client.gateway import Gateway

SPEED_TOKENS = 64
"""Tokens per answer when speed is measured: short answers must not make a model appear slow."""
_CHAT = "chat/completions"
_NO_THOUGHTS = {"enable_thinking": False}

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Answer:
    text: str
    tokens: int


@dataclass(frozen=True)
class Model:
    gateway: Gateway
    name: str

    def answer(self, messages: Conversation, max_tokens: int) -> Answer:
        """Return the greedy answer. Raises ClientError."""
        found = self._chat(messages, max_tokens=max_tokens)
        try:
            text = found["choices"][0]["message"]["content"] or ""
            return Answer(text.strip(), int(found["usage"]["completion_tokens"]))
        except (KeyError, IndexError, TypeError) as error:
            raise ClientError("INTERNAL", f"{self.name} answered without choices or usage") from error

    def prompt(self, conversation: Conversation) -> list[Token]:
        """Return the tokens of a whole conversation. Raises ClientError, NoLikelihood."""
        return prompt_tokens(
            self._chat(
                conversation,
                max_tokens=1,
                prompt_logprobs=0,
                return_token_ids=True,
                add_generation_prompt=False,
            )
        )

    def tokens_per_second(self, prompts: Sequence[Conversation], repeats: int = 2) -> float:
        """Return the best new tokens per second of several runs of these prompts, at a fixed length."""
        return max(self._round(prompts) for _ in range(repeats))

    def _round(self, prompts: Sequence[Conversation]) -> float:
        started = time.monotonic()
        counts = [count for _, count in in_parallel(self._write, prompts, len(prompts))]
        return sum(counts) / (time.monotonic() - started)

    def _write(self, messages: Conversation) -> int:
        more = {"min_tokens": SPEED_TOKENS, "ignore_eos": True}
        found = self._chat(messages, max_tokens=SPEED_TOKENS, **more)
        return int(found["usage"]["completion_tokens"])

    def _chat(self, messages: Conversation, **more: object) -> JsonObject:
        body = {"model": self.name, "messages": list(messages), "temperature": 0, "seed": 0}
        return self.gateway.post(_CHAT, {**body, "chat_template_kwargs": _NO_THOUGHTS, **more})


def in_parallel(work: Callable[[T], R], items: Sequence[T], at_a_time: int) -> Iterator[tuple[int, R]]:
    """Iterate over results with their index as they arrive; work not yet started is cancelled at the end."""
    pool = ThreadPoolExecutor(max(1, at_a_time))
    try:
        futures: dict[Future[R], int] = {pool.submit(work, item): place for place, item in enumerate(items)}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
