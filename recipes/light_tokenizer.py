"""Read a model's tokenizer and chat template without `transformers`, which is a hundred megabytes.

Only for looking at data before they are trained on. It has what `chat_tokens.py` needs of a tokenizer, read
from `tokenizer.json` by the library that `transformers` itself uses; training takes that of `transformers`. A
chat template is a program of the model's maker: it runs in Jinja's sandbox, as `transformers` runs it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer

from recipe_errors import RecipeError

TOKENIZER, SETTINGS, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class LightTokenizer:
    def __init__(self, folder: Path) -> None:
        if not (folder / TOKENIZER).is_file():
            raise RecipeError(f"{folder}: there is no {TOKENIZER}; only fast tokenizers can be looked at")
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        except Exception as error:  # the library has no class of its own for a broken file
            raise RecipeError(f"{folder / TOKENIZER}: not a tokenizer ({str(error)[:200]})") from error
        settings = _settings(folder)
        self._names = {name: text for name in _NAMED if (text := _content(settings.get(name)))}
        self.chat_template = _template(folder, settings)
        self._add_special(settings)

    @property
    def eos_token(self) -> str | None:
        return self._names.get("eos_token")

    @property
    def added_tokens_decoder(self) -> Mapping[int, AddedToken]:
        return self._tokenizer.get_added_tokens_decoder()

    def __call__(self, text: str, *, split_special_tokens: bool = False, **_: object) -> dict[str, Any]:
        """Return the ids of a text, and where each token begins and ends; no token is added."""
        self._tokenizer.encode_special_tokens = split_special_tokens
        found = self._tokenizer.encode(text, add_special_tokens=False)
        return {"input_ids": found.ids, "offset_mapping": found.offsets}

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)

    def apply_chat_template(
        self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = False, **more: object
    ) -> str:
        """Return the text of a conversation. Raises jinja2.TemplateError."""
        template = _environment().from_string(self.chat_template)
        given = {"tools": None, **self._names, **more, "add_generation_prompt": add_generation_prompt}
        return template.render(messages=messages, documents=None, **given)

    def _add_special(self, settings: Mapping[str, Any]) -> None:
        """Read tokens as special that only the settings call so."""
        listed = settings.get("added_tokens_decoder")
        named = [
            *self._names.values(),
            *(each for each in settings.get("additional_special_tokens") or () if isinstance(each, str)),
            *(_content(each) for each in (listed.values() if isinstance(listed, dict) else ())
              if isinstance(each, dict) and each.get("special")),
        ]  # fmt: skip
        known = {str(each.content) for each in self.added_tokens_decoder.values() if each.special}
        for text in dict.fromkeys(named):
            if text and text not in known and self._tokenizer.token_to_id(text) is not None:
                self._tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False)])


class _Generation(Extension):
    """The tag around what a model writes: its content stays."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    found = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    found.filters["tojson"] = lambda value, **options: json.dumps(value, **{"ensure_ascii": False, **options})
    found.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    return found


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / SETTINGS
    try:
        found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise RecipeError(f"{path}: broken JSON ({error})") from error
    return found if isinstance(found, dict) else {}


def _content(token: Any) -> str:
    """Return the text of a token, which the settings hold as text or as an object."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else ""


def _template(folder: Path, settings: Mapping[str, Any]) -> str:
    if (folder / TEMPLATE).is_file():
        return (folder / TEMPLATE).read_text("utf-8")
    found = settings.get("chat_template")
    if isinstance(found, list):  # several, with names
        found = next((each.get("template") for each in found if each.get("name") == "default"), "")
    if not found or not isinstance(found, str):
        raise RecipeError(f"{folder}: the tokenizer has no chat template; use a chat model")
    return found
