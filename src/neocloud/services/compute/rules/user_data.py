"""User data of machines: every form that cloud-init reads, as the guest gets it, or why it would have no
effect. Pure, and not for the write transaction.

cloud-init looks at the beginning of the text, or of each part of a MIME archive, regardless of case. It skips
unknown parts with a line in its log; then no user could sign in. So that is refused here.
"""

import email
import json
import re
from collections.abc import Iterable, Iterator
from email.message import Message

from neocloud.core.json_values import is_list, is_object
from neocloud.core.kind import Violation
from neocloud.core.store.group_commit import refuse_while_writing
from neocloud.services.compute.rules.yaml_outline import OutlineError, Root, SyntaxFault, yaml_root

FIELD = "spec.cloud_init_user_data"
HEADER = "#cloud-config"
ARCHIVE, PATCH, TEMPLATE = "#cloud-config-archive", "#cloud-config-jsonp", "## template: jinja"
INCLUDE = ("#include-once", "#include")
PROGRAMS = ("#!", "#cloud-boothook", "#part-handler")
HEADERS = (ARCHIVE, PATCH, TEMPLATE, HEADER, *INCLUDE, *PROGRAMS)
"""The beginnings that cloud-init knows; a longer one stands before the one that it begins with."""
TYPES = {
    "text/cloud-config": HEADER, "text/cloud-config-archive": ARCHIVE, "text/cloud-config-jsonp": PATCH,
    "text/jinja2": TEMPLATE, "text/x-include-url": "#include", "text/x-include-once-url": "#include-once",
    "text/part-handler": "#part-handler", "text/cloud-boothook": "#cloud-boothook",
    **{f"text/x-shellscript-per-{when}": "#!" for when in ("boot", "instance", "once")},
}  # fmt: skip
"""The beginning that stands for the type of a part; of other types the content decides."""
PACKED = ("application/gzip", "application/gzip-compressed", "application/x-gzip")
MIME_VERSION = "MIME-Version: 1.0\n"
LOOKED_AT_BYTES = 4096
"""Where cloud-init looks for the version of MIME."""
MAX_PARTS = 100
_MIME = re.compile(r"(content-type|mime-version)[ \t]*:", re.IGNORECASE)
_HEADER_LINE = re.compile(r"[!-9;-~]+:")
_NEARLY_TEMPLATE = re.compile(r"##\s*template\s*:", re.IGNORECASE)
_BLANK = " \t\r\f\v\ufeff"


def complete_user_data(text: str) -> str:
    """Return the user data as the guest receives it: without what stands before the first line, with the
    first line that some clients leave out, and with that line in cloud-init's own letters."""
    text = _from_first_line(text)
    if header := _header(text):
        return header + text[len(header) :]
    if _MIME.match(text):
        return text if _has_mime_version(text) else MIME_VERSION + text
    try:
        is_config = bool(text) and not _NEARLY_TEMPLATE.match(text) and yaml_root(text) is Root.MAPPING
    except OutlineError:
        is_config = False
    return f"{HEADER}\n{text}" if is_config else text


def user_data_violations(text: str) -> Iterable[Violation]:
    """Yield what would keep the text from having its effect. Programs are not looked into."""
    if "\0" in text:
        return [Violation(FIELD, "holds a zero byte; it must be text")]
    text = _from_first_line(text)
    found = _mime_faults(text) if _MIME.match(text) else _faults(text, _header(text))
    if not _MIME.match(text) and _has_mime_version(text) and (_HEADER_LINE.match(text) or not text.isascii()):
        found = [
            "has `MIME-Version:` near its beginning, so that cloud-init reads it as MIME, and letters that"
            " this spoils; write these lines further down, or send a MIME archive in base64"
        ]
    return [Violation(FIELD, fault) for fault in found]


def _has_mime_version(text: str) -> bool:
    return b"mime-version:" in text.encode("utf-8", "replace")[:LOOKED_AT_BYTES].lower()


def _from_first_line(text: str) -> str:
    """Return the text without a byte order mark and blank lines before it, and spaces before a header."""
    while True:
        line, end, rest = text.partition("\n")
        if not end or line.strip(_BLANK):
            break
        text = rest
    text = text.lstrip("\ufeff") if line.strip(_BLANK) else ""
    bare = text.lstrip(_BLANK)
    return bare if _header(bare) or _MIME.match(bare) or _NEARLY_TEMPLATE.match(bare) else text


def _header(text: str) -> str:
    """Return the known beginning, "" for none."""
    start = text[:40].lower()
    return next((header for header in HEADERS if start.startswith(header)), "")


def _faults(text: str, header: str) -> Iterator[str]:
    below = text[len(header) :] if header == _header(text) else text  # a part may have its type instead
    if header == TEMPLATE:
        yield from _template_faults(text)
    elif header == PATCH:
        yield from _patch_faults(below)
    elif header in INCLUDE:
        lines = [line.strip() for line in below.splitlines()]
        if not any(line and not line.startswith("#") for line in lines):
            yield f"has no URL under {header}"
    elif header not in PROGRAMS and text:
        yield from _yaml_faults(text, header)


def _yaml_faults(text: str, header: str) -> Iterator[str]:
    wanted = Root.SEQUENCE if header == ARCHIVE else Root.MAPPING
    example = (
        "such as `- type: text/x-shellscript` and its content" if header == ARCHIVE else "such as `users:`"
    )
    if _NEARLY_TEMPLATE.match(text):
        yield f"begins nearly like a template; write {TEMPLATE!r} exactly so"
        return
    try:
        root = yaml_root(text)
    except SyntaxFault as error:
        if header:
            yield f"is not valid YAML under {header}: {error}"
            return
        root = Root.SCALAR
    except OutlineError as error:
        yield str(error)
        return
    if root is wanted or (header and root is Root.NOTHING):
        return
    if header:
        yield f"must be a {wanted} under {header}, {example}"
    else:
        yield f"is not in a format of cloud-init; begin it with {HEADER} or with #!"


def _template_faults(text: str) -> Iterator[str]:
    """The first line below the header decides, once the template is filled in."""
    below = text.partition("\n")[2].lstrip()
    if not below.startswith("{") and _header(below) not in (HEADER, PATCH, "#!"):
        yield f"needs {HEADER} or #! in the line below {TEMPLATE!r}: cloud-init ignores other templates"


def _patch_faults(text: str) -> Iterator[str]:
    refuse_while_writing("Parsing JSON")
    try:
        found = json.loads(text)
    except ValueError as error:
        place = (
            f" in line {error.lineno}, column {error.colno}"
            if isinstance(error, json.JSONDecodeError)
            else ""
        )
        yield f"is not valid JSON under {PATCH}{place}"
        return
    except RecursionError:
        yield f"is nested too deeply under {PATCH}"
        return
    if not is_list(found) or not all(is_object(each) and "op" in each for each in found):
        yield (
            f"must be a list of changes under {PATCH}, such as "
            '`[{"op": "add", "path": "/users", "value": []}]`'
        )


def _mime_faults(text: str) -> Iterator[str]:
    refuse_while_writing("Parsing MIME")
    try:
        parts = [part for part in email.message_from_string(text).walk() if not part.is_multipart()]
    except (RecursionError, ValueError, LookupError):
        yield "is not a readable MIME archive"
        return
    if len(parts) > MAX_PARTS:
        yield f"has more than {MAX_PARTS} parts"
        return
    contents = [(part, _content(part)) for part in parts]
    if not any(content.strip() for _, content in contents):
        yield "is a MIME archive without a part that holds something; look for its boundary"
        return
    kinds = [
        TYPES.get(part.get_content_type(), "") or _header(content.lstrip()) for part, content in contents
    ]
    takes_others = "#part-handler" in kinds
    for number, ((part, content), header) in enumerate(zip(contents, kinds, strict=True), start=1):
        if not _is_encoded(part):
            fault = "holds letters beyond ASCII, which cloud-init would spoil; encode it in base64"
            yield f"part {number}: {fault}"
        elif not header and content.strip() and not takes_others and not _is_packed(part):
            kind = part.get_content_type()[:60]
            yield f"part {number}: {kind!r} is not a type of cloud-init, nor does the content begin like one"
        elif header and not _is_packed(part):
            yield from (f"part {number}: {fault}" for fault in _faults(content.strip(), header))


def _is_encoded(part: Message) -> bool:
    """Return whether cloud-init gets the letters of a part as they were sent."""
    raw = part.get_payload()
    encoding = str(part.get("Content-Transfer-Encoding", "")).strip().lower()
    return encoding in ("base64", "quoted-printable") or (isinstance(raw, str) and raw.isascii())


def _is_packed(part: Message) -> bool:
    """Return whether it is compressed: cloud-init looks into it, this check does not."""
    return part.get_content_type() in (
        "application/gzip",
        "application/gzip-compressed",
        "application/x-gzip",
    )


def _content(part: Message) -> str:
    try:
        raw = part.get_payload(decode=True)
    except (ValueError, LookupError):
        return ""
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else ""
