"""Rules are loaded again whenever they may not be in the kernel as they were loaded, and else not."""

import pytest

from neocloud.engines.base import EngineError
from neocloud.engines.podman.network import loaded_rules
from neocloud.engines.podman.network.loaded_rules import LoadedRules


class Kernel:
    """The kernel as the module sees it: each load is one change."""

    def __init__(self) -> None:
        self.generation: int | None = 7
        self.loads: list[str] = []
        self.others_meanwhile = 0
        """Changes of others while rules are loaded."""
        self.refuses = False

    async def load(self, rules: str) -> None:
        if self.refuses:
            raise EngineError("refused")
        self.loads.append(rules)
        if self.generation is not None:
            self.generation += 1 + self.others_meanwhile


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    monkeypatch.setattr(loaded_rules, "load", kernel.load)
    monkeypatch.setattr(loaded_rules, "generation", lambda: kernel.generation)
    return kernel


async def test_rules_that_nobody_has_changed_are_not_loaded_again(kernel: Kernel) -> None:
    rules = LoadedRules()
    assert await rules.load("one")
    assert not await rules.load("one") and not await rules.load("one")
    assert await rules.load("two")
    assert kernel.loads == ["one", "two"]


async def test_a_change_by_others_loads_them_again(kernel: Kernel) -> None:
    rules = LoadedRules()
    await rules.load("one")
    kernel.generation = 9
    assert not await rules.load("one")
    assert kernel.loads == ["one", "one"]


async def test_a_change_by_others_while_they_are_loaded_does_so_too(kernel: Kernel) -> None:
    rules = LoadedRules()
    kernel.others_meanwhile = 1
    await rules.load("one")
    kernel.others_meanwhile = 0
    await rules.load("one")
    await rules.load("one")
    assert kernel.loads == ["one", "one"]


async def test_a_kernel_that_counts_nothing_gets_them_each_time(kernel: Kernel) -> None:
    rules = LoadedRules()
    kernel.generation = None
    await rules.load("one")
    await rules.load("one")
    assert kernel.loads == ["one", "one"]


async def test_rules_that_were_refused_are_loaded_again(kernel: Kernel) -> None:
    rules = LoadedRules()
    await rules.load("one")
    kernel.refuses = True
    with pytest.raises(EngineError):
        await rules.load("two")
    kernel.refuses = False
    await rules.load("one")
    assert kernel.loads == ["one", "one"]
