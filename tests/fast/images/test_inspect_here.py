"""An engine on a CPU starts without a second process that imports all of vLLM to inspect a model."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests import ROOT

INSTALLED = ROOT / "images/jail/rootfs/usr/local/lib/python3.11/dist-packages"


def run_in_subprocess(inspect: Any) -> Any:
    raise AssertionError("another process was started")


def installed(monkeypatch: pytest.MonkeyPatch, *, is_cpu: bool) -> Any:
    """vLLM's registry after the plugin has run; vLLM itself is in the shared root only."""
    registry = SimpleNamespace(_run_in_subprocess=run_in_subprocess)
    models, platforms = ModuleType("vllm.model_executor.models"), ModuleType("vllm.platforms")
    vars(models)["registry"] = registry
    vars(platforms)["current_platform"] = SimpleNamespace(is_cpu=lambda: is_cpu)
    for module in (ModuleType("vllm"), ModuleType("vllm.model_executor"), models, platforms):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = importlib.util.spec_from_file_location(
        "inspect_here", INSTALLED / "neocloud_serving/inspect_here.py"
    )
    assert spec and spec.loader
    plugin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plugin)
    plugin.install()
    return registry


def test_on_a_cpu_a_model_is_inspected_in_the_same_process(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = installed(monkeypatch, is_cpu=True)
    assert registry._run_in_subprocess(lambda: "what vLLM knows of it") == "what vLLM knows of it"


def test_on_a_gpu_vllm_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed(monkeypatch, is_cpu=False)._run_in_subprocess is run_in_subprocess


def test_vllm_finds_the_plugin_among_its_entry_points() -> None:
    lines = (INSTALLED / "neocloud_serving-1.dist-info/entry_points.txt").read_text().splitlines()
    assert "neocloud_inspect_here = neocloud_serving.inspect_here:install" in lines
