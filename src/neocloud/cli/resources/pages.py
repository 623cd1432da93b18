"""The page of one resource or answer, for people, derived from its descriptor.

A page has names and values, and no paths of fields: what belongs together stands below its title, sizes have
units, times have their zone, and ids of other resources have the names of those before them. Whatever is set
is shown, except for the version, which only programs need: they read JSON or YAML.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from neocloud.cli.output import View, counted, size_text
from neocloud.cli.progress import duration
from neocloud.cli.table_layout import INDENT
from neocloud.cli.terminal import one_line
from neocloud.core import contract

NameOf = Callable[[str], str]
"""Returns the name of the resource with this id; "" if it is not known."""
LONGEST_LINE = 60
"""An object of a list is shown on one line up to this length."""
PARTS = ("spec", "status")
"""Objects whose fields are those of the resource itself."""
IDENTITY = ("name", "id", "parent_id", "labels", "created_at", "updated_at")
"""Fields of the metadata that have a place of their own."""
NOT_SHOWN = frozenset({"resource_version"})
_UPPER = (
    *(
        "api",
        "aws",
        "cidr",
        "cpu",
        "dns",
        "fqdn",
        "gid",
        "gpu",
        "ip",
        "kv",
        "lora",
        "mac",
        "md5",
        "nfs",
        "nvl",
        "oidc",
    ),
    *("os", "s3", "sku", "ssh", "ssl", "tls", "ttl", "uid", "uri", "url", "vm"),
)
_WORDS: Mapping[str, str] = {
    **{word: word.upper() for word in _UPPER},
    **{f"{word}s": f"{word.upper()}s" for word in _UPPER},
    "ipv4": "IPv4",
    "ipv6": "IPv6",
    "vcpu": "vCPU",
}
_TITLES: Mapping[str, str] = {"created_at": "Created", "updated_at": "Changed"}
_PARENTS: Mapping[str, str] = {"project": "Project", "tenant": "Tenant", "group": "Group"}
_SIZES: Mapping[str, int] = {
    "_bytes_per_second": 1,
    "_bytes": 1,
    "_kibibytes": 1024,
    "_mebibytes": 1024**2,
    "_gibibytes": 1024**3,
    "_tebibytes": 1024**4,
    "_gigabytes": 10**9,
}
_IN_BYTES = re.compile(r"size|(.*_)?(objects|parts|content|storage|object|block)_size|.*_bytes_per_.*")
"""Names of sizes that do not say their unit, which is bytes."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_VERSION = re.compile(r"(?<=.)_v\d+$")
_TIMES: Mapping[str, int] = {"_seconds": 1, "_minutes": 60, "_hours": 3600}
_ENDINGS = ("_bytes_per_second", *_SIZES, *_TIMES, "_at", "_id")


@dataclass(frozen=True)
class _Row:
    """A name and a value, or the title of the rows inside."""

    label: str
    value: str = ""
    inside: tuple["_Row", ...] = ()


def no_names(identifier: str) -> str:
    return ""


def page(answer: Message, name_of: NameOf = no_names) -> View:
    """Return the view of one resource or answer."""
    return View([[label, value] for label, value in _lines(_rows(answer, name_of), 0)])


def cells(answer: Message) -> Mapping[str, str]:
    """Return the values of the page by their names, for a row of a table. The first of a name is taken."""
    found: dict[str, str] = {}
    for label, value in _lines(_rows(answer, no_names), 0):
        if value:
            found.setdefault(label.strip(), value)
    return found


def _lines(rows: Sequence[_Row], depth: int) -> Iterator[tuple[str, str]]:
    for row in rows:
        yield f"{' ' * INDENT * depth}{one_line(row.label)}", one_line(row.value)
        yield from _lines(row.inside, depth + 1)


def _rows(answer: Message, name_of: NameOf) -> tuple[_Row, ...]:
    """Return the rows of a message: of a resource, what identifies it first, then its state."""
    metadata = next((value for field, value in answer.ListFields() if field.name == "metadata"), None)
    if metadata is None:
        return tuple(_rows_of_fields(answer, name_of))
    own = sorted(_merged(answer, name_of), key=lambda row: row.label != "State")  # which is stable
    return (*_identity(metadata, name_of), *own, *_history(metadata, name_of))


def _identity(metadata: Any, name_of: NameOf) -> Iterator[_Row]:
    yield _Row("Name", metadata.name or "-")
    if metadata.id not in ("", metadata.name):
        yield _Row("Id", metadata.id)
    if parent := metadata.parent_id:
        label = _PARENTS.get(contract.id_prefix(parent), "Belongs to")
        yield _Row(label, _of_string("parent_id", parent, name_of))


def _history(metadata: Any, name_of: NameOf) -> Iterator[_Row]:
    """Yield the rest of the metadata, and when the resource was created and changed."""
    fields = {field.name: (field, value) for field, value in metadata.ListFields()}
    is_changed = metadata.updated_at != metadata.created_at
    last = ["labels", "created_at", *(["updated_at"] if is_changed else [])]
    names = [name for name in fields if name not in IDENTITY and name not in NOT_SHOWN]
    for name in (*names, *last):
        if name in fields:
            yield from _rows_of_field(*fields[name], name_of)


def _merged(resource: Message, name_of: NameOf) -> Iterator[_Row]:
    """Yield the rows of what was asked for and of what there is; both are named where they differ."""
    wanted: dict[str, _Row] = {}
    for field, value in resource.ListFields():
        if field.name == "metadata":
            continue
        rows = (
            _rows_of_fields(value, name_of) if field.name in PARTS else _rows_of_field(field, value, name_of)
        )
        for row in rows:
            known = wanted.setdefault(row.label, row)
            if known is row:
                yield row
            elif known != row:
                yield _Row(f"{row.label} now", row.value, row.inside)


def _rows_of_fields(answer: Message, name_of: NameOf) -> Iterator[_Row]:
    fields = answer.ListFields()
    is_named = any(field.name == "name" for field, _ in fields)
    for field, value in fields:
        if field.name == "spec":  # of something inside, which has no other name for it
            yield from _rows_of_fields(value, name_of)
        elif field.name not in NOT_SHOWN:
            yield from _rows_of_field(field, value, no_names if is_named and field.name == "id" else name_of)


def _rows_of_field(field: FieldDescriptor, value: Any, name_of: NameOf) -> Iterator[_Row]:
    label, inside = label_of(field.name), field.message_type
    if inside is not None and inside.GetOptions().map_entry:
        yield _of_map(label, inside.fields_by_name["value"], value, name_of)
    elif inside is None or _is_plain(inside.full_name):
        each = list(value) if field.is_repeated else [value]
        texts = [text_of(field, one, name_of) for one in each]
        yield _Row(label, ", ".join(texts))
    elif field.is_repeated:
        yield from _of_list(label, value, name_of)
    else:
        yield _of_object(label, _rows(value, name_of))


def _of_map(label: str, of_values: FieldDescriptor, value: Mapping[str, Any], name_of: NameOf) -> _Row:
    if of_values.message_type is None:
        return _Row(
            label, ", ".join(f"{key}={text_of(of_values, value[key], name_of)}" for key in sorted(value))
        )
    return _Row(
        label, inside=tuple(_of_object(str(key), _rows(value[key], name_of)) for key in sorted(value))
    )


def _of_object(label: str, rows: Sequence[_Row]) -> _Row:
    """Return the row of an object. The only field of one needs no line of its own."""
    if not rows:
        return _Row(label, "yes")
    if len(rows) > 1:
        return _Row(label, inside=tuple(rows))
    only = rows[0]
    return _Row(_joined(label, only.label), only.value, only.inside)


def _of_list(label: str, values: Sequence[Message], name_of: NameOf) -> Iterator[_Row]:
    """Yield the objects of a list: on one line, on one each, or below a title each."""
    items = [_rows(value, name_of) for value in values]
    inner = {row.label for rows in items for row in rows}
    lines = [_on_one_line(rows) for rows in items]
    if len(inner) == 1 and all(len(rows) == 1 and not rows[0].inside for rows in items):
        yield _Row(_joined(label, *inner), ", ".join(rows[0].value for rows in items))
        return
    for number, (rows, line) in enumerate(zip(items, lines, strict=True), start=1):
        title = f"{_singular(label)} {number}" if len(items) > 1 else _singular(label)
        is_short = len(line) <= LONGEST_LINE and not any(row.inside for row in rows)
        yield _Row(title, line) if is_short else _Row(title, inside=tuple(rows))


def _on_one_line(rows: Sequence[_Row]) -> str:
    return ", ".join(f"{_small(row.label)} {row.value}" for row in rows)


def _joined(outer: str, inner: str) -> str:
    """Return one label for an object and its only field; what both say is said once."""
    words, more = outer.split(), inner.split()
    if inner in ("Id", "Value"):
        return outer
    if outer in ("", "V1"):
        return inner
    start = next(at for at in range(len(words) + 1) if _are_same(words[at:], more[: len(words) - at]))
    joined = [*words[:start], more[0] if not start or more[0].isupper() else _small(more[0]), *more[1:]]
    return " ".join(joined)


def _are_same(some: Sequence[str], others: Sequence[str]) -> bool:
    return [_singular(word).lower() for word in some] == [_singular(word).lower() for word in others]


def _small(text: str) -> str:
    """Return the text in the form that it has within a sentence."""
    return text if text[:2].isupper() or text.startswith(("IPv", "vCPU")) else f"{text[:1].lower()}{text[1:]}"


def _singular(label: str) -> str:
    return (
        f"{label[:-3]}y"
        if label.endswith("ies")
        else label.removesuffix("s")
        if not label.endswith("ss")
        else label
    )


def label_of(name: str) -> str:
    """ "size_gibibytes" is "Size", "vcpu_count" is "vCPU count"."""
    if name in _TITLES:
        return _TITLES[name]
    ending = next((each for each in _ENDINGS if name.endswith(each) and name != each[1:]), "")
    rest = _VERSION.sub("", name.removesuffix(ending)).removesuffix("_spec").replace("_bytes_per_", "_per_")
    words = [_WORDS.get(word, word) for word in rest.split("_")]
    text = " ".join(words)
    return text if words[0] in _WORDS.values() else f"{text[:1].upper()}{text[1:]}"


def _is_plain(message: str) -> bool:
    """Return whether a message is shown as one value."""
    return message.startswith("google.protobuf.")


def text_of(field: FieldDescriptor, value: Any, name_of: NameOf = no_names) -> str:
    """Return the value of a field, or one of a list, for people."""
    if field.message_type is not None:
        return _of_standard_type(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        name = known.name if known else str(value)
        return _state(field.enum_type.name, name) if field.name.endswith("state") else name
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, bytes):
        return f"{counted(len(value), 'byte')}; --output yaml shows them"
    if isinstance(value, str):
        return _of_string(field.name, value, name_of)
    if isinstance(value, float):
        return f"{value:g}"
    return _of_number(field.name, value)


def _state(kind: str, name: str) -> str:
    """Return a state in words, without the name of its enum: "SCHEDULING_STATE_ALLOWED" is "ALLOWED"."""
    prefix = f"{_CAMEL.sub('_', kind).upper()}_"
    return name.removeprefix(prefix).replace("_", " ")


def _of_string(name: str, value: str, name_of: NameOf) -> str:
    lines = value.splitlines()
    if len(lines) > 1:
        return f"{counted(len(lines), 'line')}; --output yaml shows them"
    refers = name == "id" or name.endswith(("_id", "_ids"))
    known_as = name_of(value) if refers and contract.is_id(value) else ""
    return f"{known_as} ({value})" if known_as and known_as != value else value


def _of_number(name: str, value: int) -> str:
    unit = next((unit for ending, unit in _SIZES.items() if name.endswith(ending)), 0)
    if unit or _IN_BYTES.fullmatch(name):
        size = value * (unit or 1)
        text = size_text(size) or "0 B"
        return f"{text}/s" if name.endswith("_per_second") or "throughput" in name else text
    seconds = next((unit for ending, unit in _TIMES.items() if name.endswith(ending)), 0)
    return duration(value * seconds) if seconds else str(value)


def _of_standard_type(value: Any) -> str:
    kind = value.DESCRIPTOR.full_name
    if kind == "google.protobuf.Timestamp":
        return f"{contract.to_datetime(value):%Y-%m-%d %H:%M:%S} UTC"
    if kind == "google.protobuf.Duration":
        return duration(value.seconds + value.nanos / 1e9)
    if kind.endswith("Value") and "value" in value.DESCRIPTOR.fields_by_name:
        return str(value.value)
    return contract.to_json(value)
