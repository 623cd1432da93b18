"""Drives the gateway with LangChain's ChatOpenAI, unmodified, in LangChain's own environment. Prints JSON."""

import json
import sys

import openai
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

found = {}
chat = ChatOpenAI(model="bank", temperature=0.6, max_tokens=3, max_retries=0)
answer = chat.invoke("one two three")
found["chat"] = answer.content
found["usage"] = answer.usage_metadata
found["stream"] = [chunk.content for chunk in chat.stream("one two three") if chunk.content]
found["batch"] = [each.content for each in chat.batch(["one", "two"])]


@tool
def balance_of(account: str) -> float:
    """The balance of an account."""
    return 0.0


called = ChatOpenAI(model="tools").bind_tools([balance_of]).invoke("one")
found["calls"] = [{"name": call["name"], "args": call["args"]} for call in called.tool_calls]


class Place(BaseModel):
    city: str
    branches: int


place = ChatOpenAI(model="tools").with_structured_output(Place, method="json_schema").invoke("one")
found["place"] = [place.city, place.branches]
found["embedding"] = OpenAIEmbeddings(model="embedder", check_embedding_ctx_length=False).embed_query("one")
by_tokens = OpenAIEmbeddings(model="embedder")  # sends token numbers of OpenAI's tokenizer
found["by_tokens"] = by_tokens.embed_documents(["one two", "three"])
try:
    ChatOpenAI(model="none", max_retries=0).invoke("one")
except openai.NotFoundError as error:
    found["error"] = error.code
json.dump(found, sys.stdout)
