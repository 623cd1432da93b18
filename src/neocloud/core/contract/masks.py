"""Reset masks: which fields an Update empties although the request carries no value for them.

The grammar (commas, dots, parentheses, `*`, list indexes, quoted keys) is the SDK's own; its parser is
used, so both ends always agree. This module only answers questions about the parsed tree.
"""

from dataclasses import dataclass

from nebius.base import fieldmask
from nebius.base.fieldmask_parser import parse

from neocloud.core.contract.errors import bad_field

MAX_LENGTH = 65_536
_MAX_DEPTH = 64


@dataclass(frozen=True)
class Mask:
    """A set of field paths. An empty tree names nothing below itself."""

    trees: tuple[fieldmask.Mask, ...] = ()

    def child(self, name: str) -> "Mask | None":
        """What the mask says below `name` (a field, list index or map key); None when it is not named."""
        found = []
        for tree in self.trees:
            if tree.any is not None:
                found.append(tree.any)
            part = tree.field_parts.get(fieldmask.FieldKey(name))
            if part is not None:
                found.append(part)
        return Mask(tuple(found)) if found else None


def parse_mask(text: str) -> Mask:
    """The mask in an X-ResetMask header; an empty header is an empty mask."""
    if len(text) > MAX_LENGTH or text.count("(") > _MAX_DEPTH:
        raise bad_field(
            "x-resetmask", f"is too large: at most {MAX_LENGTH} characters and {_MAX_DEPTH} groups."
        )
    try:
        tree = parse(text)
    except fieldmask.Error as error:
        raise bad_field("x-resetmask", f"cannot be read: {error}") from None
    return Mask((tree,)) if tree is not None else Mask()
