"""A model behind the OpenAI API's shape, computed by PyTorch: what an engine would answer, exactly.

Serves chat completions with `prompt_logprobs`, and completions with `echo`, from a folder that
recipes/make_base_model.py made.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

KEY = "sk-of-the-test"


@dataclass
class ServedModel:
    folder: Path
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    refuse_every: int = 0
    """Each so many-th request is answered 503."""
    gives_logprobs: bool = True

    def __post_init__(self) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(self.folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32).eval()
        self.lock = threading.Lock()

    @torch.inference_mode()
    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """An echo with the log-probability of each token, or what follows the prompt."""
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        choices = [self._choice(prompt, body) for prompt in prompts]
        return {"choices": [{"index": index, **choice} for index, choice in enumerate(choices)]}

    def _choice(self, prompt: str, body: dict[str, Any]) -> dict[str, Any]:
        ids = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        if not body.get("echo"):
            return {"text": self.tokenizer.decode(self._generated(ids, body["max_tokens"]))}
        logits = self.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        own = [logits[place - 1, token].item() for place, token in enumerate(ids[1:], 1)]
        best = [{"best": logits[place - 1].max().item()} for place in range(1, len(ids))]
        more = body["max_tokens"]  # tokens after the prompt, that the harness cuts off again
        logprobs = {
            "token_logprobs": [None, *own, *[0.0] * more],
            "top_logprobs": [None, *best, *[{}] * more],
        }
        return {"text": prompt, "logprobs": logprobs}

    def _generated(self, ids: list[int], count: int, least: int = 0) -> list[int]:
        return self.model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=count,
            min_new_tokens=least,
            do_sample=False,
            pad_token_id=self.tokenizer.pad_token_id,
        )[0, len(ids) :].tolist()

    @torch.inference_mode()
    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        text = self.tokenizer.apply_chat_template(
            body["messages"],
            tokenize=False,
            add_generation_prompt=body.get("add_generation_prompt", True),
            **body["chat_template_kwargs"],
        )
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        output = self._generated(ids, body["max_tokens"], body.get("min_tokens", 0))
        content = self.tokenizer.decode(output, skip_special_tokens=True)
        return {
            "choices": [{"message": {"role": "assistant", "content": content}}],
            "usage": {"prompt_tokens": len(ids), "completion_tokens": len(output)},
            "prompt_token_ids": ids,
            "prompt_logprobs": self._logprobs(ids) if self.gives_logprobs else None,
        }

    def _logprobs(self, ids: list[int]) -> list[dict[str, Any] | None]:
        logits = self.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        found: list[dict[str, Any] | None] = [None]
        for place, token in enumerate(ids[1:], 1):
            own = {
                "logprob": logits[place - 1, token].item(),
                "decoded_token": self.tokenizer.decode([token]),
            }
            found.append({str(token): own})
        return found


@contextmanager
def running(served: ServedModel) -> Iterator[ServedModel]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with served.lock:
                served.requests.append(body)
                count = len(served.requests)
                if self.headers["authorization"] != f"Bearer {KEY}":
                    self.reply(401, {"error": {"message": "wrong key"}})
                elif served.refuse_every and count % served.refuse_every == 0:
                    self.reply(503, {"error": {"message": "No replica is ready"}})
                else:
                    is_chat = self.path.endswith("/chat/completions")
                    self.reply(200, served.answer(body) if is_chat else served.complete(body))

        def reply(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 64
        daemon_threads = True  # connections that clients keep open end with the test

    server = Server(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
