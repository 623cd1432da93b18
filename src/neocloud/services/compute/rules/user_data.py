"""Cloud-init user data: repaired where everybody means the same, refused where it cannot work. Pure.

Clients in the wild send a cloud-config without its first line. cloud-init would ignore it and nobody could
sign in, so the line is put in front when the data is a YAML mapping that does not begin with "#".
"""

from collections.abc import Iterable

from neocloud.core.kind import Violation
from neocloud.core.yaml_outline import OutlineError, Root, SyntaxFault, yaml_root

HEADER = "#cloud-config"
FIELD = "spec.cloud_init_user_data"


def complete_user_data(text: str) -> str:
    """Return what the guest gets."""
    if not text.strip() or text.lstrip().startswith("#") or _starts_other(text):
        return text
    try:
        return f"{HEADER}\n{text}" if yaml_root(text) is Root.MAPPING else text
    except OutlineError:
        return text


def user_data_violations(text: str) -> Iterable[Violation]:
    """Only a cloud-config can be judged; scripts and archives are the guest's affair."""
    start = text.lstrip()
    if "\0" in text:
        yield Violation(FIELD, "holds a zero byte; it must be text")
        return
    has_header = start.startswith(HEADER)
    if not start or (start.startswith("#") and not has_header) or _starts_other(text):
        return
    try:
        root = yaml_root(text)
    except SyntaxFault as error:
        root = None
        if has_header:
            yield Violation(FIELD, f"is no valid YAML under {HEADER}: {error}")
            return
    except OutlineError as error:
        yield Violation(FIELD, str(error))
        return
    if root is Root.MAPPING or (has_header and root is Root.NOTHING):
        return
    if has_header:
        yield Violation(FIELD, f"must be a mapping under {HEADER}, such as `users:` and a list")
    else:
        yield Violation(FIELD, f"is nothing that cloud-init reads; begin it with {HEADER} or with #!")


def _starts_other(text: str) -> bool:
    """Multi-part archives and compressed data have starts of their own."""
    return text.lstrip().lower().startswith(("content-type:", "mime-version:"))
