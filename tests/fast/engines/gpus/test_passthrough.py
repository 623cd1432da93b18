"""GPUs given to VFIO and back, on a made-up sysfs and kernel: simulated. Faults: an IOMMU group with the
host's disk, a crash between two writes, a GPU that goes."""

from pathlib import Path

import pytest

from neocloud.engines.base import EngineError
from neocloud.engines.podman.gpus.passthrough import Passthrough
from tests.fast.engines.gpus.machine import BRIDGE, DISK, NVIDIA, OTHER, SOUND, Kernel, h100

GPU = h100(0, group="7")
SOUND_ADDRESS = "0000:01:00.1"


@pytest.fixture
def passthrough(kernel: Kernel, tmp_path: Path) -> Passthrough:
    """A machine with a GPU whose card has a sound device, too."""
    kernel.add(GPU.pci_address, "7")
    kernel.add(SOUND_ADDRESS, "7", driver="snd_hda_intel", kind=SOUND)
    kernel.add("0000:00:01.0", "7", driver="pcieport", vendor=OTHER, kind=BRIDGE)
    return again(kernel, tmp_path)


def again(kernel: Kernel, tmp_path: Path) -> Passthrough:
    """Return the passthrough after a restart of the server."""
    (tmp_path / "proc").mkdir(exist_ok=True)
    return Passthrough(kernel.pci, tmp_path / "engine" / "gpus.json", tmp_path / "proc")


def drivers(kernel: Kernel) -> tuple[str, str, str]:
    return (
        kernel.driver(GPU.pci_address),
        kernel.driver(SOUND_ADDRESS),
        kernel.driver("0000:00:01.0"),
    )


HOST = ("nvidia", "snd_hda_intel", "pcieport")


def test_a_group_goes_to_vfio_and_back(passthrough: Passthrough, kernel: Kernel) -> None:
    passthrough.take("7", [GPU], {GPU.key: 0})
    assert drivers(kernel) == ("vfio-pci", "vfio-pci", "pcieport")
    assert passthrough.gpus() == [GPU]

    done = len(kernel.written)
    passthrough.take("7", [GPU], {})
    assert len(kernel.written) == done  # it may be repeated

    passthrough.restore_drivers(kept={"7"})
    assert drivers(kernel)[0] == "vfio-pci"
    passthrough.restore_drivers()
    assert drivers(kernel) == HOST
    assert not passthrough.taken() and not passthrough.gpus()


@pytest.mark.parametrize("attribute", ["driver_override", "unbind", "drivers_probe"])
def test_what_the_kernel_refuses_changes_nothing(
    passthrough: Passthrough, kernel: Kernel, attribute: str
) -> None:
    kernel.refuses = {attribute}
    with pytest.raises(EngineError, match="refused"):
        passthrough.take("7", [GPU], {})
    kernel.refuses = set()
    passthrough.restore_drivers()
    assert drivers(kernel) == HOST and not passthrough.taken()


def test_devices_are_given_back_after_a_crash(
    passthrough: Passthrough, kernel: Kernel, tmp_path: Path
) -> None:
    passthrough.take("7", [GPU], {})
    again(kernel, tmp_path).restore_drivers()
    assert drivers(kernel) == HOST


def test_a_crash_before_the_first_write_leaves_nothing(
    passthrough: Passthrough, kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is written first."""
    monkeypatch.setattr(Kernel, "write", _killed)
    with pytest.raises(SystemExit):
        again(kernel, tmp_path).take("7", [GPU], {})
    monkeypatch.undo()
    assert list(passthrough.taken()) == [GPU.pci_address]
    assert not again(kernel, tmp_path).gpus()
    again(kernel, tmp_path).restore_drivers()
    assert drivers(kernel) == HOST and not passthrough.taken()


def _killed(*_: object) -> None:
    raise SystemExit


def test_a_group_with_the_disk_of_the_host_is_refused(passthrough: Passthrough, kernel: Kernel) -> None:
    kernel.add("0000:02:00.0", "7", driver="nvme", vendor=OTHER, kind=DISK)
    before = list(kernel.written)
    with pytest.raises(EngineError, match=r"shares IOMMU group 7 with 0000:02:00.0 \(driver nvme\).*ACS"):
        passthrough.take("7", [GPU], {})
    assert kernel.written == before and drivers(kernel) == HOST


def test_a_device_of_the_group_that_nobody_uses_is_no_obstacle(
    passthrough: Passthrough, kernel: Kernel
) -> None:
    kernel.add("0000:02:00.0", "7", driver="", vendor=OTHER, kind=DISK)
    passthrough.take("7", [GPU], {})
    assert kernel.driver("0000:02:00.0") == ""


def test_a_group_with_another_gpu_is_refused(passthrough: Passthrough, kernel: Kernel) -> None:
    kernel.add("0000:02:00.0", "7")
    with pytest.raises(EngineError, match="shares IOMMU group 7 with 0000:02:00.0"):
        passthrough.take("7", [GPU], {})


def test_the_card_of_the_console_is_refused(passthrough: Passthrough, kernel: Kernel) -> None:
    (kernel.root / "sys/bus/pci/devices" / GPU.pci_address / "boot_vga").write_text("1\n")
    with pytest.raises(EngineError, match="shows the host's console"):
        passthrough.take("7", [GPU], {})


def test_without_the_module_it_is_refused(passthrough: Passthrough, kernel: Kernel) -> None:
    (kernel.root / "sys/bus/pci/drivers/vfio-pci").rmdir()
    with pytest.raises(EngineError, match="modprobe vfio-pci"):
        passthrough.take("7", [GPU], {})


def test_a_gpu_that_is_gone_is_refused(passthrough: Passthrough, kernel: Kernel) -> None:
    kernel.pull(GPU.pci_address)
    with pytest.raises(EngineError, match="not on the PCI bus"):
        passthrough.take("7", [GPU], {})
    with pytest.raises(EngineError, match="no GPU in IOMMU group 9"):
        passthrough.take("9", [GPU], {})


def test_a_gpu_that_falls_off_the_bus_while_a_guest_has_it_is_forgotten(
    passthrough: Passthrough, kernel: Kernel
) -> None:
    passthrough.take("7", [GPU], {})
    kernel.pull(GPU.pci_address)
    assert passthrough.gpus() == []
    passthrough.restore_drivers()
    assert not passthrough.taken() and kernel.driver(SOUND_ADDRESS) == "snd_hda_intel"


def test_a_gpu_that_the_host_uses_is_refused(
    passthrough: Passthrough, kernel: Kernel, tmp_path: Path
) -> None:
    """Its driver would wait for the program without end."""
    process = tmp_path / "proc" / "812"
    (process / "fd").mkdir(parents=True)
    (process / "comm").write_text("nvidia-persiste\n")
    (process / "fd" / "3").symlink_to("/dev/nvidia0")
    with pytest.raises(EngineError, match=r"in use on this host by nvidia-persiste \(process 812\)"):
        passthrough.take("7", [GPU], {GPU.key: 0})
    assert drivers(kernel) == HOST
    passthrough.take("7", [GPU], {GPU.key: 1})  # that program has another one


def test_a_kernel_that_chooses_another_driver_is_noticed(passthrough: Passthrough, kernel: Kernel) -> None:
    kernel.add("0000:03:00.0", "9", driver="nvidia", vendor=NVIDIA)
    other = h100(2, group="9")
    write = kernel.write

    def ignores_override(path: Path, text: str) -> None:
        write(path, "\n" if path.name == "driver_override" else text)

    stubborn = Passthrough(type(kernel.pci)(kernel.root, ignores_override), kernel.root / "gpus.json")
    with pytest.raises(EngineError, match="did not give device 0000:03:00.0 to vfio-pci.*nvidia"):
        stubborn.take("9", [other], {})
    assert kernel.driver("0000:03:00.0") == "nvidia"
