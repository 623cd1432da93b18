"""Drives the gateway with litellm as a client, unmodified; runs in litellm's own environment. Prints JSON."""

import json
import os
import sys

import litellm

found = {}
base = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"], "num_retries": 0}
messages = [{"role": "user", "content": "one two three"}]
answer = litellm.completion(model="openai/bank", messages=messages, max_tokens=3, **base)
found["chat"] = answer.choices[0].message.content
found["usage"] = [answer.usage.prompt_tokens, answer.usage.completion_tokens]
stream = litellm.completion(model="openai/bank", messages=messages, stream=True, **base)
found["stream"] = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
tools = [{"type": "function", "function": {"name": "balance_of", "parameters": {"type": "object"}}}]
called = litellm.completion(model="openai/tools", messages=messages, tools=tools, **base)
found["call"] = called.choices[0].message.tool_calls[0].function.arguments
embedded = litellm.embedding(model="openai/embedder", input=["one"], encoding_format="float", **base)
found["embedding"] = embedded.data[0]["embedding"]
documents = ["bees make honey", "a card was blocked"]
ranked = litellm.rerank(
    model="hosted_vllm/embedder", query="card blocked", documents=documents, top_n=1, **base
)
found["ranked"] = [(each["index"], each["relevance_score"]) for each in ranked.results]
found["errors"] = {}
for model in ("none", "cold"):
    try:
        litellm.completion(model=f"openai/{model}", messages=messages, max_retries=0, **base)
    except Exception as error:  # noqa: BLE001  which one it is, is the question
        found["errors"][model] = [type(error).__name__, error.status_code]
json.dump(found, sys.stdout)
