"""The contrast of texts, by the ratio that WCAG asks for (4.5 to 1), light and dark."""

import re

import pytest

from tests.real.model_gateway.pages.conftest import ROOT

THEME = (ROOT / "src/neocloud/model_gateway/pages/static/theme.css").read_text()
PAIRS = [
    *(("text", under) for under in ("page", "surface", "sunk", "accent-soft", "bad-soft")),
    *(("muted", under) for under in ("page", "surface", "sunk")),
    ("on-accent", "accent"),
    ("accent", "surface"),
    *((name, f"{name}-soft") for name in ("good", "warn", "bad")),
]


def colours(css: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z-]+): #([0-9a-f]{3,6})", css))


def luminance(colour: str) -> float:
    full = "".join(digit * 2 for digit in colour) if len(colour) == 3 else colour
    parts = [int(full[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out(scheme: str) -> None:
    light, dark, _ = re.split(r"@media \(prefers", THEME)
    found = colours(light if scheme == "light" else dark)
    for name, under in PAIRS:
        brighter, darker = sorted((luminance(found[name]), luminance(found[under])), reverse=True)
        assert (brighter + 0.05) / (darker + 0.05) >= 4.5, (name, under)
