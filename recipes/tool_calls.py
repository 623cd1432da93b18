"""Check the tools of a conversation, the calls of them, and their results.

They have the form of the OpenAI API: `tools` are functions with a JSON schema of their arguments; an answer
has `tool_calls`; a message with the role `tool` has the result of one. Needs only the standard library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from recipe_errors import BadRecordError
from text_files import parse_json

MOST_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FUNCTION_KEYS = {"name", "description", "parameters", "strict"}

Tool = dict[str, Any]
"""`{"type": "function", "function": {"name", "description", "parameters"}}`."""
Call = dict[str, Any]
"""`{"id", "type": "function", "function": {"name", "arguments"}}`, where the arguments are an object."""


def check_tools(tools: Any, where: str) -> list[Tool]:
    """Return the tools; [] for none. They may be JSON text, as in columns of tables."""
    where = f"{where}: 'tools'"
    if isinstance(tools, str) and tools.strip():
        tools = _parsed(tools, where)
    if not tools:
        return []
    if not isinstance(tools, list) or len(tools) > MOST_TOOLS:
        raise BadRecordError(f"{where} must be a list of at most {MOST_TOOLS} functions")
    checked = [_tool(tool, f"{where}: tool {number}") for number, tool in enumerate(tools, 1)]
    names = [name_of(tool) for tool in checked]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadRecordError(f"{where}: two functions have the name {twice[0]!r}")
    return checked


def _tool(tool: Any, where: str) -> Tool:
    if not isinstance(tool, dict):
        raise BadRecordError(f"{where} is not an object")
    if tool.get("type", "function") != "function":
        raise BadRecordError(f"{where} has the type {tool.get('type')!r:.80}; only functions are learnt")
    function = tool.get("function", tool if "name" in tool else None)  # Hermes and others leave the frame out
    if not isinstance(function, dict):
        raise BadRecordError(f"{where} has no 'function'")
    _check_name(function.get("name"), where)
    if more := set(function) - _FUNCTION_KEYS - {"type"}:
        raise BadRecordError(
            f"{where} has the key {min(more)!r:.80}, which no chat template shows; remove it"
        )
    described, parameters = function.get("description"), function.get("parameters")
    if described is not None and not isinstance(described, str):
        raise BadRecordError(f"{where} has a description that is no text")
    if parameters is not None and not isinstance(parameters, dict):
        raise BadRecordError(f"{where} has parameters that are no JSON schema, which is an object")
    # The order and the nulls are those that a model server passes on to the chat template.
    kept = {"name": function["name"], "description": described, "parameters": parameters}
    return {"type": "function", "function": kept | _strict(function, where)}


def _strict(function: dict[str, Any], where: str) -> dict[str, Any]:
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise BadRecordError(f"{where} has 'strict', which is neither true nor false")
    return {} if strict is None else {"strict": strict}


def check_calls(calls: Any, where: str) -> list[Call]:
    """Return the calls of a message, with their arguments as objects."""
    if not isinstance(calls, list):
        raise BadRecordError(f"{where} has 'tool_calls' that are no list")
    checked = [_call(call, f"{where}: 'tool_calls': call {number}") for number, call in enumerate(calls, 1)]
    ids = [call["id"] for call in checked if "id" in call]
    if len(set(ids)) < len(ids):
        raise BadRecordError(f"{where} has two calls with one id")
    return checked


def _call(call: Any, where: str) -> Call:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise BadRecordError(f"{where} is no call of a function")
    _check_name(function.get("name"), where)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = _parsed(arguments, f"{where}: 'arguments'") if arguments.strip() else {}
    if not isinstance(arguments, dict):
        raise BadRecordError(f"{where} has arguments that are no JSON object")
    named = {"id": str(call["id"])} if call.get("id") else {}
    return {**named, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def check_use(messages: list[dict[str, Any]], tools: list[Tool], parallel: Any, where: str) -> None:
    """Refuse calls of tools that the model is not shown, and results that answer no call."""
    if parallel is not None and not isinstance(parallel, bool):
        raise BadRecordError(f"{where}: 'parallel_tool_calls' is {parallel!r:.80}; true or false is needed")
    known = {name_of(tool): tool["function"]["parameters"] or {} for tool in tools}
    for number, message in enumerate(messages, 1):
        calls = message.get("tool_calls", [])
        place = f"{where}: message {number}"
        for call in calls:
            _check_call(call, known, place)
        if parallel is False and len(calls) > 1:
            raise BadRecordError(f"{place} has {len(calls)} calls, and 'parallel_tool_calls' is false")
        if calls and number < len(messages):
            _check_results(calls, messages[number:], place)


def _check_call(call: Call, known: dict[str, Any], where: str) -> None:
    name, arguments = name_of(call), call["function"]["arguments"]
    if name not in known:
        raise BadRecordError(f"{where} calls {name!r}, which is not in 'tools': the model would not know it")
    required = known[name].get("required", [])
    missing = [each for each in required if each not in arguments] if isinstance(required, list) else []
    if missing:
        raise BadRecordError(f"{where} calls {name!r} without {missing[0]!r:.80}, which it requires")
    properties = known[name].get("properties") or {}
    more = [each for each in arguments if each not in properties]
    if more and known[name].get("additionalProperties") is False:
        raise BadRecordError(f"{where} calls {name!r} with {more[0]!r:.80}, which it does not have")


def _check_results(calls: list[Call], following: list[dict[str, Any]], where: str) -> None:
    """Require one result of each call, in the messages behind it."""
    results = []
    for message in following:
        if message["role"] != "tool":
            break
        results.append(message)
    if len(results) != len(calls):
        raise BadRecordError(f"{where} has {len(calls)} calls, and {len(results)} results follow")
    ids = {call.get("id") for call in calls}
    for result in results:
        if (answered := result.get("tool_call_id")) is not None and answered not in ids:
            raise BadRecordError(f"{where}: the result of {answered!r:.80} answers none of its calls")


def name_of(tool: Tool | Call) -> str:
    return tool["function"]["name"]


def texts_of(message: dict[str, Any]) -> Iterator[str]:
    """Yield the words of a message, and its calls as JSON."""
    if message["content"]:
        yield message["content"]
    for call in message.get("tool_calls", ()):
        yield as_json(call["function"])


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _check_name(name: Any, where: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadRecordError(
            f"{where} has the function name {name!r:.80}; letters, digits, _ . - are allowed"
        )


def _parsed(text: str, where: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise BadRecordError(f"{where} is broken JSON ({error})") from error
