"""The real xgrammar compiles what the bounds let pass, in the time and memory of a turn. What ends its
process is refused."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.compiled.turns import BASE_SECONDS, MAX_SECONDS, SECONDS_OF_WEIGHT
from tests.clients import CLIENTS
from tests.fast.model_gateway.compiled.test_bounds import asked, outputs

CLIENT = CLIENTS / "xgrammar" / "bin" / "python"
FIELDS = {"ebnf": "grammar", "lark": "grammar"}
MOST_MIB = 512


@dataclass
class Compiler:
    process: subprocess.Popen[str]

    def compile(self, kind: str, text: str, seconds: int = 20) -> tuple[str, float, float]:
        assert self.process.stdin and self.process.stdout
        print(json.dumps([kind, text, seconds]), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    if not CLIENT.exists():
        pytest.skip("not_run: `make clients` installs xgrammar, which this compiles with")
    script = Path(__file__).with_name("drive_xgrammar.py")
    pipe = subprocess.PIPE
    with subprocess.Popen([CLIENT, script], text=True, stdin=pipe, stdout=pipe) as process:
        assert process.stdout and process.stdout.readline()
        yield Compiler(process)
        process.kill()


def promised(kind: str, text: str) -> float | None:
    """Return the seconds of a turn for it; None where it is refused."""
    try:
        compiled = asked(outputs(**{FIELDS.get(kind, kind): text})).compiled
    except OpenAiError as error:
        assert error.status == 400
        return None
    assert compiled is not None
    return min(BASE_SECONDS + compiled.weight * SECONDS_OF_WEIGHT, MAX_SECONDS)


def named(count: int, **more: Any) -> dict[str, Any]:
    """Return an object with so many properties."""
    return {"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(count)}, **more}


def listed(schemas: list[Any]) -> str:
    return json.dumps({"type": "array", "prefixItems": schemas})


ENDS_IT = [
    *(("lark", f"start: start{times}") for times in ("?", "*", "+", "~2", "~0..3")),
    ("lark", "start: a\na: b?\nb: a?"),
    ("lark", "start: [[a]]\na: (start)"),
    *(("ebnf", f"root ::= root{times}") for times in ("{2}", "{1,3}", "{0,}")),
    ("ebnf", 'root ::= a{1,2}\na ::= "" (root{0,3})'),
    ("ebnf", 'root ::= ("") root{2}'),
]


@pytest.mark.parametrize(("kind", "grammar"), ENDS_IT)
def test_a_grammar_that_ends_the_process_is_refused(compiler: Compiler, kind: str, grammar: str) -> None:
    became, _, _ = compiler.compile(kind, grammar)
    assert became == "killed: SIGSEGV"
    assert promised(kind, grammar) is None


TOO_DEAR = {
    "properties that are counted": ("json", json.dumps(named(300, minProperties=150))),
    "texts that begin alike": ("json", json.dumps({"enum": ["x" * 12_000 + end for end in "ab"]})),
}


@pytest.mark.parametrize("name", TOO_DEAR)
def test_what_takes_longer_than_anybody_waits_is_refused(compiler: Compiler, name: str) -> None:
    kind, text = TOO_DEAR[name]
    became, _, _ = compiler.compile(kind, text, seconds=2)
    assert became == "killed: SIGKILL"
    assert promised(kind, text) is None


DEAR = {
    "counted properties": ("json", json.dumps(named(100, minProperties=50, maxProperties=90))),
    "many objects with counts": ("json", listed([named(20, minProperties=10)] * 40)),
    "formats": ("json", listed([{"type": "string", "format": name} for name in ("uri", "email")] * 200)),
    "a text limit": ("json", json.dumps({"type": "string", "maxLength": 100})),
    "text limits": ("json", listed([{"type": "string", "maxLength": n} for n in range(1, 69)])),
    "exact texts": ("json", listed([{"minLength": n, "maxLength": n, "type": "string"} for n in (90, 95)])),
    "long texts": ("json", json.dumps({"enum": ["x" * 4_000 + end for end in "abc"]})),
    "optional properties": ("json", json.dumps(named(990))),
    "a range": ("json", json.dumps({"type": "number", "minimum": -1e300, "maximum": 1.2345678901e300})),
    "wide repetitions": ("regex", "|".join(f"[^{sign}]{{1,400}}" for sign in "ab")),
    "letters": ("regex", "[a-z ]{1,100}"),
    "rows": ("regex", ",".join(["[^,]{1,50}"] * 30)),
    "anything": ("regex", ".*" * 10),
    "lists of letters": ("regex", "|".join(f"[{'abcdefghijklmnopq'[:n]}]{{100}}" for n in range(9, 15))),
    "repetitions of Lark": ("lark", "start: A~9000\nA: /[^a]/"),
    "repeated rules": ("ebnf", "root ::= ([^a] | b){1,900}\nb ::= [^b]{1,100}"),
}


@pytest.mark.parametrize("name", DEAR)
def test_what_passes_compiles_in_its_time(compiler: Compiler, name: str) -> None:
    kind, text = DEAR[name]
    seconds = promised(kind, text)
    assert seconds is not None
    became, used, mebibytes = compiler.compile(kind, text, seconds=round(seconds) + 1)
    assert (became, used < seconds, mebibytes < MOST_MIB) == ("compiled", True, True)


_TIMES = st.sampled_from(["", "", "?", "*", "+"])
_LARK_TIMES, _EBNF_TIMES = (
    _TIMES | st.sampled_from(["~2", "~0..3", "~1..2"]),
    _TIMES | st.sampled_from(["{2}", "{0,3}", "{0,}", "{1,2}"]),
)


def grammars(
    first: str, sign: str, times: st.SearchStrategy[str], groups: list[str]
) -> st.SearchStrategy[str]:
    """Grammars of few rules, which lead to each other and to themselves."""
    names = st.sampled_from([first, "a", "b"])
    leaves = names | names | st.sampled_from(['"x"', '""', '"y" "z"'])
    item = st.tuples(
        st.recursive(
            leaves,
            lambda inner: st.tuples(st.sampled_from(groups), inner, inner, times).map(_group),
            max_leaves=4,
        ),
        times,
    ).map("".join)
    body = st.lists(st.lists(item, min_size=1, max_size=2).map(" ".join), min_size=1, max_size=2).map(
        " | ".join
    )
    return st.tuples(body, body, body).map(
        lambda bodies: "\n".join(
            f"{name}{sign} {body}" for name, body in zip((first, "a", "b"), bodies, strict=True)
        )
    )


def _group(parts: tuple[str, str, str, str]) -> str:
    sides, left, right, times = parts
    return f"{sides[0]}{left} {right}{sides[1]}{times}"


@settings(max_examples=100)
@given(grammars("start", ":", _LARK_TIMES, ["()", "[]"]))
@example('start: a? b?\na: start b | "x"\nb: a+')
def test_no_lark_grammar_that_passes_ends_the_process(compiler: Compiler, text: str) -> None:
    if promised("lark", text) is not None:
        became, used, _ = compiler.compile("lark", text, seconds=5)
        assert not became.startswith("killed") and used < BASE_SECONDS


@settings(max_examples=100)
@given(grammars("root", " ::=", _EBNF_TIMES, ["()"]))
@example('root ::= (a root "x"){0,3}\na ::= root "y" | ""')
def test_no_ebnf_grammar_that_passes_ends_the_process(compiler: Compiler, text: str) -> None:
    if promised("ebnf", text) is not None:
        became, used, _ = compiler.compile("ebnf", text, seconds=5)
        assert not became.startswith("killed") and used < BASE_SECONDS


_SMALL = st.integers(0, 120)
_SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {"type": st.just("string")},
        optional={
            "minLength": _SMALL,
            "maxLength": _SMALL,
            "pattern": st.text("ab.*+?|()[]{}1,", max_size=12),
        },
    )
    | st.fixed_dictionaries(
        {"type": st.sampled_from(["integer", "number"])},
        optional={"minimum": st.integers(-(10**15), 10**15), "maximum": st.integers(-(10**15), 10**15)},
    )
    | st.fixed_dictionaries({"enum": st.lists(st.text(max_size=20) | st.none() | st.integers(), max_size=9)})
    | st.sampled_from(["#", "#/$defs/x", "#/anyOf/0", "#/items"]).map(lambda place: {"$ref": place}),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=4).flatmap(
            lambda each: st.sampled_from(["anyOf", "allOf", "oneOf"]).map(lambda name: {name: each})
        )
        | st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner},
            optional={"minItems": _SMALL, "maxItems": _SMALL, "prefixItems": st.lists(inner, max_size=3)},
        )
        | st.fixed_dictionaries(
            {"type": st.just("object")},
            optional={
                "properties": st.dictionaries(st.text("ab", max_size=3), inner, max_size=6),
                "additionalProperties": inner | st.booleans(),
                "patternProperties": st.dictionaries(st.text("^a.*", max_size=4), inner, max_size=2),
                "minProperties": st.integers(0, 9),
                "maxProperties": st.integers(0, 9),
                "$defs": st.fixed_dictionaries({"x": inner}),
            },
        )
    ),
    max_leaves=12,
)


@settings(max_examples=60)
@given(_SCHEMAS)
def test_any_schema_that_passes_compiles_in_its_time(compiler: Compiler, schema: Any) -> None:
    text = json.dumps(schema)
    seconds = promised("json", text)
    if seconds is not None:
        became, used, mebibytes = compiler.compile("json", text, seconds=round(seconds) + 1)
        assert became in ("compiled", "refused") and used < seconds and mebibytes < MOST_MIB
