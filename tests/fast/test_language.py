"""Names, docstrings, comments, help, messages and pages use standard terms (docs/howto/style.md)."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = {
    r"anew": "again",
    r"bricks?": "service",
    r"doors?": "API, port, front",
    r"hurry|hurries": "short retries",
    r"mend(?:s|ed|ing)?": "fix, repair",
    r"newborns?": "new child",
    r"purses?": "budget balance",
    r"reckon(?:s|ed|ings?)?": "compute, estimate",
    r"shall": "must",
    r"sow[ns]?": "create defaults",
    r"strangers?": "outsider, unauthenticated caller, other tenant",
    r"twins?": "alias",
    r"whoever": "a caller who, the account that",
    r"wish(?:es|ed|ing)?": "desired state, request",
}
"""Words, with what to write instead. Found as a word, or as a part of a name (`BrickList`)."""

PHRASES = {
    r"all the same": "anyway, equal",
    r"and the like": "and similar ones",
    r"as it is wished": "desired",
    r"as it stands": "unchanged",
    r"but for": "except",
    r"by heart": "in memory",
    r"(?:by|of) whatever": "any",
    r"(?:carry|carries|carried|carrying) on": "forward, continue",
    r"for good": "permanently",
    r"(?:give|gives|gave|given|giving) back": "return, release",
    r"(?:go|goes|went) on": "continue, keep running",
    r"in vain": "without success",
    r"(?:is|are|was|were|been|be) told(?! apart| from)": "gets, is reported, is shown",
    r"(?:lay|lays|laid|laying) out": "arrange, stage",
    r"lest": "so that ... not",
    r"(?:let|lets|letting) go": "release",
    r"needs not": "does not need",
    r"no one": "no user, or turn the sentence round",
    r"nobody (?:but|has|is|knows|may)": "only, or turn the sentence round",
    r"of (?:hers|his|theirs)": "its, their",
    r"of late": "recently",
    r"of one's": "own",
    r"once more": "again",
    r"ought": "should",
    r"(?:speak|speaks|spoke|spoken) (?:against|for|of)": "fail on, be about, represent",
    r"(?:tell|tells|told) of": "report",
    r"there(?:by|from|in|of|to)": "name the thing",
    r"up to where": "the last ... that",
    r"what nothing": "a ... without",
    r"who(?:m|ever)? asks": "the caller",
}
"""Phrases in prose, with what to write instead; a phrase may be on two lines."""

KEPT = {
    ("src/neocloud/services/inference/model_server_key.py", "whoever"),
    ("src/neocloud/services/inference/model_server_key.py", "who asks"),
    ("src/neocloud/services/inference/reconcile/slurm_job.py", "anew"),
    ("src/neocloud/services/inference/reconcile/slurm_job.py", "is told"),
    ("src/neocloud/services/tuning/types.py", "wish"),
    ("tests/fast/services/tuning/test_on_slurm.py", "wish"),
    ("tests/fast/test_names.py", "door"),
    ("tests/fast/test_names.py", "wish"),
}
"""Keys of stored data, texts that running replicas carry and are replaced for, and names banned elsewhere."""

ON_THE_WIRE = ("StartedAnew",)
"""Codes that clients know, which stay as they are."""

PLACES = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "bench",
    "docs",
    "images",
    "monitoring",
    "proto",
    "pyproject.toml",
    "recipes",
    "runs",
    "scripts",
    "src",
    "tests",
)
NOT_READ = ("docs/howto/style.md", "tests/fast/test_language.py")
"""The page that shows wrong words, and this file."""
SUFFIXES = (
    ".c",
    ".css",
    ".h",
    ".html",
    ".js",
    ".md",
    ".proto",
    ".py",
    ".sbatch",
    ".sh",
    ".toml",
    ".yaml",
    ".yml",
)

SHAPE = re.compile(r"(?:As|By|Is|Of|That|Those|What|Which|Whom?|Whose)\b")
"""How no docstring begins: with a relative clause as its subject, or with a fragment."""
SHAPE_OF_CODE = re.compile(rf"{SHAPE.pattern}|(?:How|Where|Whether)\b")
"""The same for modules, classes and functions; a field may be "Whether the node is drained"."""

_FIRST_COMMENT = re.compile(r"^(?! *//).*\n *// (.*)", re.MULTILINE)
_WORD = r"[a-z']+"
_NAME = re.compile("|".join(NAMES))
_BREAK = r"\s+(?:(?:#|//|/?\*+|>)\s*)?"
_PHRASE = re.compile(
    rf"(?<![\w-])(?:{'|'.join(each.replace(' ', _BREAK) for each in PHRASES)})(?![\w-])", re.IGNORECASE
)
_MAY_HAVE_PHRASE = re.compile(rf" (?:{'|'.join(PHRASES)})(?= )")
_MAY_HAVE_SHAPE = re.compile(rf'"""\s*(?:{SHAPE_OF_CODE.pattern})')
"""The same in one pass: most files have none, and need no slow look."""
_WRONG = {
    "# The Wishes of a tenant": "wishes",
    "class MethodTwin:": "twin",
    "def let_strangers_in() -> None:": "strangers",
    "# Nobody may read it.": "nobody may",
    "// The job goes\n  // on without it.": "goes on",
    "A fault speaks against the node.": "speaks against",
}
"""Texts, with the word that is found in each."""


def files(place: str) -> Iterator[tuple[str, Path]]:
    root = ROOT / place
    for path in [root] if root.is_file() else sorted(root.rglob("*")):
        name = str(path.relative_to(ROOT))
        is_hidden = "__pycache__" in name or "/." in name
        is_text = path.suffix in SUFFIXES or not path.suffix
        if path.is_file() and is_text and not is_hidden and name not in NOT_READ:
            yield name, path


def words(text: str) -> Iterator[str]:
    """Words of prose and parts of names, in lower case: `MethodTwin` has "method" and "twin"."""
    for name in re.findall(r"[A-Za-z_]+", text):
        if name in ON_THE_WIRE:
            continue
        yield name.lower()
        parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
        yield from (part.lower() for part in parts if len(parts) > 1)


def wrong_words(text: str) -> Iterator[tuple[int, str]]:
    """The number of the line, and the word or phrase, in lower case and with single spaces."""
    for number, line in enumerate(text.splitlines(), 1):
        if _NAME.search(line.lower()):
            yield from ((number, word) for word in dict.fromkeys(words(line)) if _NAME.fullmatch(word))
    if not _MAY_HAVE_PHRASE.search(f" {' '.join(re.findall(_WORD, text.lower()))} "):
        return
    for match in _PHRASE.finditer(text):
        number = text.count("\n", 0, match.start()) + 1
        yield number, " ".join(re.findall(_WORD, match[0].lower()))


def advice(word: str) -> str:
    return next(better for each, better in (NAMES | PHRASES).items() if re.fullmatch(each, word))


def docstrings(source: str) -> Iterator[tuple[int, str, re.Pattern[str]]]:
    """The line and text of each docstring, with the pattern that it must not match.

    A text below an assignment is the docstring of a constant or a field.
    """
    for node in ast.walk(ast.parse(source)) if _MAY_HAVE_SHAPE.search(source) else ():
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for number, statement in enumerate(node.body):
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text.strip(), SHAPE if number else SHAPE_OF_CODE


@pytest.mark.parametrize("place", PLACES)
def test_no_banned_word(place: str) -> None:
    found = [
        f"{name}:{number}: {word!r}: write {advice(word)!r}"
        for name, path in files(place)
        for number, word in wrong_words(path.read_text(errors="replace"))
        if (name, word) not in KEPT
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("place", [place for place in PLACES if (ROOT / place).is_dir()])
def test_docstrings_begin_with_a_noun_or_an_imperative(place: str) -> None:
    found = [
        f"{name}:{number}: {text[:80]}"
        for name, path in files(place)
        if path.suffix == ".py"
        for number, text, shape in docstrings(path.read_text())
        if shape.match(text)
    ]
    assert not found, "\n".join(found)


def test_comments_of_the_contract_begin_with_a_noun_or_a_verb() -> None:
    found = [
        f"{name}: {match[1]}"
        for name, path in files("proto")
        for text in [path.read_text()]
        for match in _FIRST_COMMENT.finditer(text)
        if SHAPE.match(match[1])
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("text", ["What it holds.", "Whether it runs.", "Of one list.", "By name."])
def test_a_wrong_shape_is_found(text: str) -> None:
    source = f'def held():\n    """{text}"""\n'
    assert [shape.match(text) is None for _, text, shape in docstrings(source)] == [False]


@pytest.mark.parametrize("text", _WRONG)
def test_a_wrong_word_is_found(text: str) -> None:
    assert [word for _, word in wrong_words(text)] == [_WRONG[text]]


def test_what_is_kept_is_there() -> None:
    assert {(name, word) for name, _ in KEPT for _, word in wrong_words((ROOT / name).read_text())} == KEPT
