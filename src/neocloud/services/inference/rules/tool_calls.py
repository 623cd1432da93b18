"""The parser of vLLM for a model's tool calls, as its chat template tells. Pure.

A template shows how the model writes a call, since it writes the calls of earlier turns. Where it leaves
tools out, the model never sees them, and calls none by itself; where a request demands a call, the model
server has it written in the form of the tool's schema.
"""

import re

PARSERS = (
    ("<function=", "qwen3_coder"),
    ("<|tool_call_begin|>", "kimi_k2"),
    ("<｜tool▁calls▁begin｜>", "deepseek_v3"),
    ("<start_function_call>", "functiongemma"),
    ("<arg_key>", "glm45"),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_tag|>", "llama3_json"),
    ('{"name": function name, "parameters"', "llama3_json"),
)
"""Marks in the templates of a family, with the parser of its calls; the first that fits."""
OF_ANY_MODEL = "hermes"
"""For a model of no known family: calls that a request demands are written in a form that needs no parser."""
_TOOLS = re.compile(r"\btools\b")


def shows_tools(template: str) -> bool:
    """Return whether a template reads the tools of a request at all."""
    return bool(_TOOLS.search(template))


def parser_of(template: str) -> str:
    """Return the name of vLLM's parser; "" without a template."""
    if not template:
        return ""
    found = (parser for mark, parser in PARSERS if mark in template)
    return next(found, OF_ANY_MODEL) if shows_tools(template) else OF_ANY_MODEL
