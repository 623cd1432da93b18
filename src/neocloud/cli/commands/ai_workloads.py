"""What `neo ai endpoint create` and `neo ai job create` fill in where nothing is named."""

from neocloud.cli.output import JsonObject, say
from neocloud.cli.resources.lookup import ProjectClient
from neocloud.cli.resources.shapes import smallest_shape

PROTOCOL = "HTTP"
DISK_TYPE = "NETWORK_SSD"


def fill_defaults(cloud: ProjectClient, request: JsonObject) -> None:
    """Fill in the smallest shape, a disk and the protocol of ports, and say which shape it is."""
    spec: JsonObject = request["spec"]
    objects = [(port, "protocol", PROTOCOL) for port in spec.get("ports", ())]
    for each, name, value in (*objects, (spec.setdefault("disk", {}), "type", DISK_TYPE)):
        if isinstance(each, dict):  # anything else is refused with the reason
            each.setdefault(name, value)
    platform, preset = str(spec.get("platform") or ""), str(spec.get("preset") or "")
    if not platform or not preset:
        spec["platform"], spec["preset"] = smallest_shape(cloud, platform, preset)
        say(f"It gets {spec['preset']} on {spec['platform']}; --platform and --preset name others.")
