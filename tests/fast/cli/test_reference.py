"""The reference page is generated; here it must be what generating gives now."""

from neocloud.cli.reference import page
from tests import ROOT

PAGE = ROOT / "docs" / "reference" / "cli.md"


def test_the_reference_of_commands_is_not_stale() -> None:
    assert PAGE.read_text() == page(), "Run `make docs` and commit the result."
