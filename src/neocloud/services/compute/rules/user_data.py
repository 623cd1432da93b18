"""Cloud-init user data: repaired where everybody means the same, refused where it cannot work. Pure.

Clients in the wild send a cloud-config without its first line. cloud-init would ignore it and nobody could
sign in, so the line is put in front when the data is a YAML mapping that does not begin with "#".
"""

from collections.abc import Iterable

import yaml

from neocloud.core.service import Violation

HEADER = "#cloud-config"
FIELD = "spec.cloud_init_user_data"


def complete_user_data(text: str) -> str:
    """What the guest gets."""
    if not text.strip() or text.lstrip().startswith("#") or _starts_other(text):
        return text
    return f"{HEADER}\n{text}" if isinstance(_parsed(text), dict) else text


def user_data_violations(text: str) -> Iterable[Violation]:
    """Only a cloud-config can be judged; scripts and archives are the guest's affair."""
    whole = complete_user_data(text)
    if "\0" in text:
        yield Violation(FIELD, "holds a zero byte; it must be text")
    elif whole.lstrip().startswith(HEADER):
        try:
            content = yaml.safe_load(whole)
        except yaml.YAMLError as error:
            yield Violation(FIELD, f"is no valid YAML under {HEADER}: {_place(error)}")
            return
        if content is not None and not isinstance(content, dict):
            yield Violation(FIELD, f"must be a mapping under {HEADER}, such as `users:` and a list")
    elif whole.strip() and not whole.lstrip().startswith("#") and not _starts_other(whole):
        yield Violation(FIELD, f"is nothing that cloud-init reads; begin it with {HEADER} or with #!")


def _starts_other(text: str) -> bool:
    """Multi-part archives and compressed data have starts of their own."""
    return text.lstrip().lower().startswith(("content-type:", "mime-version:"))


def _parsed(text: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None


def _place(error: yaml.YAMLError) -> str:
    """Where and what, without the data itself: it may hold secrets."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "it cannot be read"
    return f"{problem} in line {mark.line + 1}, column {mark.column + 1}" if mark else str(problem)
