"""Every shape in the catalogue has a price, also as a machine that may be taken away: CMP-15."""

from datetime import date

import pytest

from neocloud.services.billing.rules.price_list import default_price_list
from neocloud.services.compute.public import Preset, platforms

TODAY = date(2026, 11, 21)
PRICES = default_price_list()
PRESETS = [
    preset
    for platform in platforms().values()
    for preset in platform.presets.values()
    if platform.name != "gpu-local"  # only its owner knows what such a GPU costs
]


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: f"{preset.platform} {preset.name}")
def test_a_preemptible_machine_costs_something_and_less(preset: Preset) -> None:
    usual = PRICES.node_rate(preset, TODAY)
    assert 0 < PRICES.node_rate(preset, TODAY, is_preemptible=True) < usual
