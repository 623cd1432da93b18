"""The address ranges of a cloud, chosen at its first start so that several clouds can run on one host.

The choice is recorded in the home and never changes. A file of the host lists the homes on it. Each home's
own record says which ranges it has, so a home that was removed has none.
"""

import fcntl
import json
import logging
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from ipaddress import IPv4Network
from pathlib import Path

from neocloud.core.osfiles import write_file
from neocloud.settings.settings import Settings

logger = logging.getLogger(__name__)

RECORD = "ranges.json"
_PRIVATE = tuple(IPv4Network("10.128.0.0/9").subnets(new_prefix=13))
"""A cloud takes the pools of new networks from one of these, which has 8, before it tries the others."""
_PUBLIC = (IPv4Network("198.18.0.0/16"), *IPv4Network("198.19.0.0/16").subnets(new_prefix=20))
"""Set aside for benchmarks (RFC 2544), so that they collide with nothing."""


class BadRecord(OSError):
    """The record of a home's ranges cannot be used."""


@dataclass(frozen=True)
class Ranges:
    private: IPv4Network
    """Where the pools of new networks come from first."""
    public: IPv4Network
    """The public pool of new projects."""

    @property
    def number(self) -> int:
        """A number that no other cloud on the host has."""
        return _PRIVATE.index(self.private) if self.private in _PRIVATE else 0


FIRST = Ranges(_PRIVATE[0], _PUBLIC[0])
"""The ranges of a cloud that is alone on its host, or older than the choice."""


@dataclass(frozen=True)
class HostRegistry:
    """The list of the homes on this host."""

    homes: Path = Path("/var/lib/neocloud-homes.json")

    def register(self, settings: Settings, host_subnets: Iterable[IPv4Network]) -> Ranges:
        """Return the ranges of this home, chosen now if it has none. Raises BadRecord; OSError.

        A home that comes with a record to this host, as a restored one does, must not share its ranges with
        another cloud here.
        """
        with self._locked():
            others = self._others(settings.home)
            ranges = read_ranges(settings.home)
            if ranges is None:
                ranges = _first_ranges(settings, list(others.values()), list(host_subnets))
                text = {name: str(value) for name, value in asdict(ranges).items()}
                write_file(settings.home / RECORD, json.dumps(text, indent=2) + "\n", durable=True)
            elif settings.home not in self._listed():
                _refuse_copy(settings.home, ranges, others)
            self._write([*others, settings.home])
        return ranges

    def others(self, home: Path) -> list[Path]:
        """Return the homes of other clouds on this host, running or not."""
        return list(self._others(home))

    def remove(self, home: Path) -> None:
        """Remove a home that is being destroyed from the list."""
        with self._locked():
            self._write(list(self._others(home)))

    @contextmanager
    def _locked(self) -> Generator[None, None, None]:
        """Wait for other clouds that start or go. Locks the folder itself: a lock file would stay behind."""
        try:
            folder = os.open(self.homes.parent, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # no list either: `_write` warns
            yield
            return
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _others(self, home: Path) -> dict[Path, Ranges]:
        """Return the homes that still exist, except this one."""
        found: dict[Path, Ranges] = {}
        for other in self._listed():
            with suppress(OSError):
                ranges = read_ranges(other)
                if ranges is not None and other != home:
                    found[other] = ranges
        return found

    def _listed(self) -> list[Path]:
        try:
            return [Path(each) for each in json.loads(self.homes.read_text())]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError) as error:
            logger.warning("Ignored %s, which cannot be read: %s", self.homes, error)
            return []

    def _write(self, homes: Sequence[Path]) -> None:
        """A host that keeps this file read-only runs one cloud, or several whose operators choose ranges."""
        try:
            if homes:
                write_file(self.homes, json.dumps(sorted(map(str, homes)), indent=2) + "\n", durable=True)
            else:
                self.homes.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("Other clouds on this host may choose our ranges: %s", error)


def with_own_ranges(
    settings: Settings, host_subnets: Iterable[IPv4Network], registry: HostRegistry | None = None
) -> Settings:
    """Return the settings with the ranges of this home. A public pool that the operator chose stays.

    `host_subnets` are routed on this host already. Raises BadRecord; OSError.
    """
    ranges = (registry or HostRegistry()).register(settings, host_subnets)
    public = settings.public_pool or str(ranges.public)
    return replace(
        settings, private_range=str(ranges.private), public_pool=public, cloud_number=ranges.number
    )


def read_ranges(home: Path) -> Ranges | None:
    """Return the recorded ranges of a home; None if there is no record. Raises BadRecord; OSError."""
    try:
        document = json.loads((home / RECORD).read_text())
        return Ranges(IPv4Network(document["private"]), IPv4Network(document["public"]))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise BadRecord(f"{home / RECORD} cannot be read: {error}. Fix the file, or restore it.") from error


def choose(
    candidates: Sequence[IPv4Network], others: Sequence[IPv4Network], host_subnets: Sequence[IPv4Network]
) -> IPv4Network:
    """Return the first candidate that overlaps no other cloud's range, and no subnet of the host if possible.

    When other clouds have them all, return the first: networks that clash are refused when they are created.
    """
    free = [each for each in candidates if not any(map(each.overlaps, others))]
    if not free:
        logger.warning("Other clouds on this host have all ranges from %s on", candidates[0])
    clear = [each for each in free if not any(map(each.overlaps, host_subnets))]
    return next(iter([*clear, *free, *candidates]))


def _refuse_copy(home: Path, ranges: Ranges, others: Mapping[Path, Ranges]) -> None:
    for other, theirs in others.items():
        if ranges.private.overlaps(theirs.private) or ranges.public.overlaps(theirs.public):
            raise BadRecord(
                f"The cloud in {home} has the addresses of the one in {other}, which is on this host, too"
                " (it may be a copy of it). Remove that one with `neo destroy`, or use another host."
            )


def _first_ranges(
    settings: Settings, others: Sequence[Ranges], host_subnets: Sequence[IPv4Network]
) -> Ranges:
    own = IPv4Network(settings.public_pool) if settings.public_pool else None
    if settings.key_file.exists():  # every start before this one left it
        return replace(FIRST, public=own or FIRST.public)
    private = choose(_PRIVATE, [each.private for each in others], host_subnets)
    return Ranges(private, own or choose(_PUBLIC, [each.public for each in others], host_subnets))
