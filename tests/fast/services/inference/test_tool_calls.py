"""The parser of a model's tool calls follows from its chat template; a template without tools is known."""

import json
from pathlib import Path

import pytest

from neocloud.core.untrusted.files import Folder
from neocloud.services.inference.reconcile.weights import read_weights
from neocloud.services.inference.rules.tool_calls import parser_of, shows_tools
from tests.fast.services.inference.cloud import FakeCloud, write_model
from tests.fast.services.inference.test_gateway_service import ask
from tests.fast.services.inference.test_reconcile import cloud, deploy

__all__ = ["cloud"]

QWEN = "{% if tools %}{{ tools | tojson }}{% endif %}<tool_call>\n{{ call }}\n</tool_call>"
PLAIN = "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "parser", "shows"),
    [
        (QWEN, "hermes", True),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", "mistral", True),
        ("{% if tools is not none %}<|python_tag|>{% endif %}", "llama3_json", True),
        ("{% if tools %}<tool_call>\n<function=example>{% endif %}", "qwen3_coder", True),
        ("{% if tools %}{{ tools }}{% endif %}", "hermes", True),
        (PLAIN, "hermes", False),
        ("{{ my_tools_and_more }}", "hermes", False),
        ("", "", False),
    ],
)
def test_the_parser_of_each_family(template: str, parser: str, shows: bool) -> None:
    assert (parser_of(template), shows_tools(template)) == (parser, shows)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.jinja", QWEN),
        ("chat_template.json", json.dumps({"chat_template": QWEN})),
        ("tokenizer_config.json", json.dumps({"chat_template": QWEN})),
        ("tokenizer_config.json", json.dumps({"chat_template": [
            {"name": "rag", "template": PLAIN}, {"name": "default", "template": QWEN}]})),
    ],
)  # fmt: skip
def test_the_template_is_read_where_models_have_it(tmp_path: Path, name: str, content: str) -> None:
    path = write_model(tmp_path / "model")
    for each in ("chat_template.jinja", "tokenizer_config.json"):
        (path / each).unlink(missing_ok=True)
    with Folder.open(path) as folder:
        assert not read_weights(folder).chat_template
    (path / name).write_text(content)
    with Folder.open(path) as folder:
        assert read_weights(folder).chat_template == QWEN


@pytest.mark.parametrize(
    ("template", "asked", "parser", "hides"),
    [(QWEN, "", "hermes", False), (PLAIN, "", "hermes", True), (PLAIN, "mistral", "mistral", False)],
)
async def test_a_model_server_gets_the_parser_and_the_gateway_what_is_hidden(
    cloud: FakeCloud, template: str, asked: str, parser: str, hides: bool
) -> None:
    path = write_model(cloud.models / "bank")
    (path / "chat_template.jinja").write_text(template)
    spec = {"source": {"folder": str(path)}, "tool_call_parser": asked}
    model_id = await cloud.create("Model", "bank", spec)
    await cloud.until(model_id, "READY")
    deployment_id = await deploy(cloud, model_id)
    await cloud.until(deployment_id, "READY")
    arguments = list(cloud.pod(deployment_id).manifest.containers[0].args)
    place = arguments.index("--enable-auto-tool-choice")
    assert arguments[place + 1 : place + 3] == ["--tool-call-parser", parser]
    [route] = (await ask(cloud, "ListRoutes")).routes
    assert route.hides_tools is hides
