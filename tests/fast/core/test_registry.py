"""Offers of services to one another are found by their interface, and built once."""

import pytest

from neocloud.core.readers import NotProvided, ServiceRegistry


class Prices:
    pass


def test_a_factory_runs_once_at_the_first_lookup() -> None:
    registry, made = ServiceRegistry(), []

    def make() -> Prices:
        made.append(Prices())
        return made[-1]

    registry.add_factory(Prices, make)
    assert not made
    assert registry.get(Prices) is registry.get(Prices) is made[0]
    assert len(made) == 1


def test_a_value_goes_before_a_factory() -> None:
    prices = Prices()
    registry = ServiceRegistry().add(Prices, prices)
    registry.add_factory(Prices, Prices)
    registry.build()
    assert registry.get(Prices) is prices


def test_what_is_missing_is_named_with_its_module() -> None:
    registry = ServiceRegistry()
    assert registry.find(Prices) is None
    with pytest.raises(NotProvided, match=rf"Prices.*{__name__}"):
        registry.get(Prices)


def test_a_copy_is_changed_alone() -> None:
    registry = ServiceRegistry()
    registry.copy().add(Prices, Prices())
    assert registry.find(Prices) is None
