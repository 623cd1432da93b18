"""The reference page is generated; here it must be what generating gives now."""

from pathlib import Path

from neocloud.cli.reference import page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "cli.md"


def test_the_reference_of_commands_is_not_stale() -> None:
    assert PAGE.read_text() == page(), "Run `make docs` and commit the result."
