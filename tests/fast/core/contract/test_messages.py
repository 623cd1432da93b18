"""Modules of message classes, made at run time."""

import importlib

import pytest

from neocloud.core import contract


def test_a_message_is_imported_from_the_module_of_its_package() -> None:
    from neocloud.messages.nebius.compute.v1 import Disk, DiskSpec  # noqa: PLC0415

    assert Disk is contract.message("nebius.compute.v1.Disk")
    assert Disk(spec=DiskSpec(size_gibibytes=3)).spec.size_gibibytes == 3
    assert DiskSpec.DiskType.Name(DiskSpec.DiskType.Value("NETWORK_SSD")) == "NETWORK_SSD"


def test_a_top_level_enum_is_imported_too() -> None:
    from neocloud.messages.nebius.audit.v2 import EventType  # noqa: PLC0415

    assert EventType.Value("CONTROL_PLANE") == contract.enum("nebius.audit.v2.EventType").Value(
        "CONTROL_PLANE"
    )


def test_a_name_that_the_contract_lacks_is_an_import_error_that_says_so() -> None:
    module = importlib.import_module("neocloud.messages.nebius.compute.v1")
    with pytest.raises(AttributeError, match=r"neither a message nor an enum nebius\.compute\.v1\.Dsik"):
        module.Dsik  # noqa: B018
    with pytest.raises(ImportError):
        importlib.import_module("neocloud.messages.nebius.nothing.v1")


@pytest.mark.parametrize("package", ["nebius", "nebius.compute", "neocloud.slurm.v1"])
def test_packages_that_only_hold_others_are_modules(package: str) -> None:
    assert importlib.import_module(f"neocloud.messages.{package}").__name__.endswith(package)
