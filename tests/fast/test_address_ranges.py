"""The ranges that a cloud chooses at its first start, beside other clouds on its host (VPC-01)."""

import json
import threading
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from neocloud.control_plane.address_ranges import (
    FIRST,
    RECORD,
    BadRecord,
    HostRegistry,
    read_ranges,
    with_own_ranges,
)
from neocloud.settings.settings import Settings


class Host:
    """A host whose clouds lie in folders of a temporary one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.numbers: dict[str, int] = {}
        self.registry = HostRegistry(folder / "homes.json")

    def start(self, name: str, *host_subnets: str, public_pool: str = "") -> tuple[str, str]:
        home = self.folder / name
        home.mkdir(exist_ok=True)
        settings = Settings(home=home, public_pool=public_pool)
        found = with_own_ranges(settings, map(IPv4Network, host_subnets), self.registry)
        assert replace(found, private_range="", public_pool=public_pool, cloud_number=0) == settings
        self.numbers[name] = found.cloud_number
        return found.private_range, found.public_pool

    def remove(self, name: str) -> None:
        for file in (self.folder / name).iterdir():
            file.unlink()
        (self.folder / name).rmdir()

    @property
    def homes(self) -> list[str]:
        return [Path(each).name for each in json.loads(self.registry.homes.read_text())]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_the_first_cloud_has_the_published_ranges_and_keeps_them(host: Host) -> None:
    assert host.start("a") == (str(FIRST.private), str(FIRST.public)) == ("10.128.0.0/13", "198.18.0.0/16")
    assert host.start("a", "10.128.0.0/17") == ("10.128.0.0/13", "198.18.0.0/16")


def test_each_further_cloud_has_ranges_of_its_own(host: Host) -> None:
    started = [host.start(f"cloud-{number}") for number in range(16)]
    for ranges in zip(*started, strict=True):
        networks = [IPv4Network(each) for each in ranges]
        assert not any(one.overlaps(two) for one in networks for two in networks if one is not two)
    assert started[1] == ("10.136.0.0/13", "198.19.0.0/20")
    assert list(host.numbers.values()) == list(range(16))


def test_a_cloud_starts_where_no_range_is_left(host: Host) -> None:
    for number in range(16):
        host.start(f"cloud-{number}")
    assert host.start("one-more") == ("10.128.0.0/13", "198.19.240.0/20")


def test_a_home_of_an_earlier_version_keeps_the_published_ranges(host: Host) -> None:
    host.start("a")
    (host.folder / "old").mkdir()
    (host.folder / "old" / "store.key").touch()
    assert host.start("old") == ("10.128.0.0/13", "198.18.0.0/16")
    assert host.start("old") == ("10.128.0.0/13", "198.18.0.0/16")


def test_a_removed_home_leaves_its_ranges_to_others(host: Host) -> None:
    host.start("a")
    host.start("b")
    host.remove("a")
    assert host.start("c") == ("10.128.0.0/13", "198.18.0.0/16")
    assert host.homes == ["b", "c"]


def test_a_destroyed_cloud_leaves_no_entry(host: Host) -> None:
    host.start("a")
    host.start("b")
    host.registry.remove(host.folder / "a")
    assert host.homes == ["b"]
    host.registry.remove(host.folder / "b")
    assert not host.registry.homes.exists()
    host.registry.remove(host.folder / "b")


def test_subnets_of_the_host_are_avoided_where_possible(host: Host) -> None:
    assert host.start("a", "10.128.0.0/20", "198.18.5.0/24") == ("10.136.0.0/13", "198.19.0.0/20")
    assert host.start("b", "10.0.0.0/8") == ("10.128.0.0/13", "198.18.0.0/16")


def test_the_operator_decides_on_the_public_range(host: Host) -> None:
    assert host.start("a", public_pool="198.18.0.0/24") == ("10.128.0.0/13", "198.18.0.0/24")
    assert host.start("b") == ("10.136.0.0/13", "198.19.0.0/20")
    assert host.start("b", public_pool="198.18.0.0/24") == ("10.136.0.0/13", "198.18.0.0/24")
    assert host.start("b") == ("10.136.0.0/13", "198.19.0.0/20")


def test_clouds_that_start_at_the_same_time_choose_different_ranges(host: Host) -> None:
    found: list[tuple[str, str]] = []
    threads = [threading.Thread(target=lambda n=n: found.append(host.start(f"cloud-{n}"))) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({private for private, _ in found}) == len({public for _, public in found}) == 6


def test_a_damaged_list_of_homes_stops_no_cloud(host: Host) -> None:
    host.registry.homes.write_text("{")
    assert host.start("a") == ("10.128.0.0/13", "198.18.0.0/16")
    assert host.homes == ["a"]


def test_a_damaged_record_is_reported_by_its_own_cloud_only(host: Host) -> None:
    host.start("a")
    (host.folder / "a" / RECORD).write_text("{}")
    host.start("b")
    with pytest.raises(BadRecord, match=r"ranges\.json cannot be read"):
        host.start("a")


def test_a_host_without_a_writable_list_runs_a_cloud(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    host.registry = HostRegistry(host.folder / "missing" / "homes.json")
    assert host.start("a") == ("10.128.0.0/13", "198.18.0.0/16")
    assert read_ranges(host.folder / "a") == FIRST
    assert "may choose our ranges" in caplog.text


def test_a_restored_copy_does_not_start_beside_its_original(host: Host) -> None:
    host.start("a")
    host.start("b")
    (host.folder / "copy").mkdir()
    (host.folder / "copy" / RECORD).write_text((host.folder / "a" / RECORD).read_text())
    with pytest.raises(BadRecord, match=f"the addresses of the one in {host.folder / 'a'}.*neo destroy"):
        host.start("copy")
    assert host.homes == ["a", "b"]
    ranges = host.start("a")
    host.remove("a")
    assert host.start("copy") == ranges
    assert host.start("copy") == ranges and host.homes == ["b", "copy"]
