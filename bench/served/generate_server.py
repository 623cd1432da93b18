#!/usr/bin/env python3
"""Serve a fine-tuned model without vLLM: `generate` of transformers, with the adapter applied by peft.

POST /generate {"prompts": [[token, ...], ...], "tokens": 64} answers when all have that many new tokens, as
one batch. It runs in a pod, in the shared root, with the same libraries as the engine that is compared; it
knows nothing of Neocloud.
"""

import argparse
import json
import os
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import peft
import torch
from transformers import AutoModelForCausalLM


class Generator:
    def __init__(self, model: str, adapter: str, dtype: torch.dtype) -> None:
        place = "cuda" if torch.cuda.is_available() else "cpu"
        base: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
        self._model: Any = peft.PeftModel.from_pretrained(base, adapter).to(place).eval()
        self._place = place
        self.dtype = dtype

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], tokens: int) -> int:
        """Return the number of new tokens; prompts are of one length."""
        batch = torch.tensor(prompts, device=self._place)
        found = self._model.generate(
            input_ids=batch,
            attention_mask=torch.ones_like(batch),
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            do_sample=False,
        )
        return int(found[:, batch.shape[1] :].numel())


def fastest(model: str, adapter: str) -> Generator:
    """Return the model in 16 or 32 bits, whichever is faster on this processor."""
    found: list[tuple[float, Generator]] = []
    types = (torch.bfloat16,) if torch.cuda.is_available() else (torch.bfloat16, torch.float32)
    for dtype in types:
        generator = Generator(model, adapter, dtype)
        found.append((min(_seconds(generator) for _ in range(4)), generator))
    return min(found, key=lambda one: one[0])[1]


def _seconds(generator: Generator) -> float:
    started = time.monotonic()
    generator.generate([[5] * 32], 8)
    return time.monotonic() - started


class Handler(BaseHTTPRequestHandler):
    generator: Generator

    def do_GET(self) -> None:
        self._answer({"dtype": str(self.generator.dtype).removeprefix("torch.")})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer({"tokens": self.generator.generate(request["prompts"], request["tokens"])})

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--adapter", required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    Handler.generator = fastest(options.model, options.adapter)
    HTTPServer(("0.0.0.0", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
