# pyright: strict
"""Thermal zones: degrees left to the temperature at which the kernel switches the host off."""

import re

from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.found import Found
from neocloud.fleet.agent.tree import Tree

FOLDER = "sys/class/thermal"
_ZONE = re.compile(r"thermal_zone\d{1,4}")
_TRIP = re.compile(r"(trip_point_\d{1,3})_type")


def probe(tree: Tree, expected: Expected) -> Found:
    found = Found()
    for zone in tree.names(FOLDER):
        if _ZONE.fullmatch(zone):
            _zone(tree, f"{FOLDER}/{zone}", zone, found)
    if not found.readings and not found.unreadable:
        found.leave_out("There is no thermal zone with a critical temperature", "thermal_zone")
    return found


def _zone(tree: Tree, folder: str, zone: str, found: Found) -> None:
    trips = [match[1] for name in tree.names(folder) if (match := _TRIP.fullmatch(name))]
    critical = [
        tree.number(f"{folder}/{trip}_temp")
        for trip in trips
        if tree.optional(f"{folder}/{trip}_type") == "critical"
    ]
    limits = [each for each in critical if each is not None and each > 0]
    if not limits:
        return
    name = f"{zone} ({tree.optional(f'{folder}/type') or 'unnamed'})"
    now = tree.number(f"{folder}/temp")
    if now is None:
        found.fail_to_read("thermal_zone", name, "the zone gives no temperature")
    else:
        left = (min(limits) - now) / 1000
        found.read("thermal_zone", name, left, f"{now / 1000:g} °C, critical at {min(limits) / 1000:g} °C")
