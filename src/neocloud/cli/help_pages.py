"""Pages of --help: names of options are folded where they do not fit, and not cut."""

from rich.text import Text
from typer import rich_utils
from typer.rich_utils import NegativeOptionHighlighter, OptionHighlighter


class _Names(OptionHighlighter):
    def __call__(self, text: str | Text) -> Text:
        return _folded(super().__call__(text))


class _NegativeNames(NegativeOptionHighlighter):
    def __call__(self, text: str | Text) -> Text:
        return _folded(super().__call__(text))


def fold_names() -> None:
    """Have the pages of this process fold names."""
    rich_utils.highlighter = _Names()
    rich_utils.negative_highlighter = _NegativeNames()


def _folded(text: Text) -> Text:
    text.overflow = "fold"
    return text
