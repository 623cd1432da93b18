"""Which fields of a Pod the engines understand, and what a Pod must hold to be taken.

Pure. A field that no engine acts on is refused with its name instead of being dropped in silence; fields that
only steer a fleet scheduler are listed and let through. It must not translate anything.
"""

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from neocloud.engines.base import EngineError, KubernetesObject
from neocloud.engines.manifests import check_name, quantity

_POD = {
    "containers",
    "volumes",
    "restartPolicy",
    "hostUsers",
    "hostname",
    "subdomain",
    "terminationGracePeriodSeconds",
    "shareProcessNamespace",
    "securityContext",
}
_STEERS_A_FLEET = {
    "affinity",
    "automountServiceAccountToken",
    "dnsPolicy",
    "enableServiceLinks",
    "nodeSelector",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "serviceAccountName",
    "tolerations",
    "topologySpreadConstraints",
}
_CONTAINER = {
    "name",
    "image",
    "imagePullPolicy",
    "command",
    "args",
    "workingDir",
    "env",
    "envFrom",
    "ports",
    "resources",
    "securityContext",
    "volumeMounts",
    "readinessProbe",
    "livenessProbe",
    "startupProbe",
}
_VOLUME_SOURCES = ("configMap", "secret", "persistentVolumeClaim", "hostPath", "emptyDir")
_PROBE_ACTIONS = ("tcpSocket", "httpGet", "exec")
_POD_SECURITY = {"runAsUser", "runAsGroup", "supplementalGroups", "sysctls", "seccompProfile"}
_CONTAINER_SECURITY = {
    "privileged",
    "capabilities",
    "runAsUser",
    "runAsGroup",
    "readOnlyRootFilesystem",
    "allowPrivilegeEscalation",
    "seccompProfile",
}
_LIMITS = {"cpu", "memory", "nvidia.com/gpu", "ephemeral-storage"}


def is_device(host_path: Mapping[str, Any]) -> bool:
    """Whether a hostPath volume is a device, such as /dev/kvm, that containers may use."""
    return host_path.get("type") == "CharDevice"


def check_pod(manifest: KubernetesObject) -> None:
    """Raise EngineError naming the first field that is wrong or not understood."""
    name = manifest["metadata"]["name"]
    where = f"Pod {name}"
    spec = manifest.get("spec")
    if not isinstance(spec, Mapping):
        raise EngineError(f"{where} has no spec.")
    _known(spec, _POD | _STEERS_A_FLEET, where)
    _known(spec.get("securityContext") or {}, _POD_SECURITY, f"{where}: securityContext")
    _check_seccomp(spec.get("securityContext") or {}, where)
    if not isinstance(spec.get("hostUsers", True), bool):
        raise EngineError(f"{where}: hostUsers must be true or false.")
    if spec.get("restartPolicy", "Always") not in ("Always", "OnFailure", "Never"):
        raise EngineError(f"{where}: restartPolicy must be Always, OnFailure or Never.")
    check_name(spec.get("hostname", name.replace(".", "-")), f"hostname of {where}", label=True)
    _check_grace(spec, where)
    volumes = _check_volumes(spec, where)
    containers = spec.get("containers")
    if not isinstance(containers, list) or not containers:
        raise EngineError(f"{where} has no containers; give it at least one.")
    _unique((container.get("name") for container in containers), f"{where}: container name")
    for container in containers:
        _check_container(container, volumes, where)


def _known(given: Mapping[str, Any], known: set[str], where: str) -> None:
    for field in given:
        if field not in known:
            raise EngineError(f"{where}: field {field!r} is not supported by this engine.")


def _check_seccomp(context: Mapping[str, Any], where: str) -> None:
    """The engines' default filter of system calls is the one that there is."""
    profile = context.get("seccompProfile")
    if profile is not None and profile != {"type": "RuntimeDefault"}:
        raise EngineError(
            f"{where}: seccompProfile {profile!r} is not supported; leave it out or use RuntimeDefault, "
            "which every container has."
        )


def _unique(values: Iterable[object], what: str) -> None:
    seen: set[object] = set()
    for value in values:
        if value in seen:
            raise EngineError(f"{what} {value!r} is used twice.")
        seen.add(value)


def _check_grace(spec: Mapping[str, Any], where: str) -> None:
    grace = spec.get("terminationGracePeriodSeconds", 30)
    if not isinstance(grace, int) or grace < 0:
        raise EngineError(f"{where}: terminationGracePeriodSeconds must be 0 or more seconds.")


def _check_volumes(spec: Mapping[str, Any], where: str) -> set[str]:
    volumes = spec.get("volumes") or []
    for volume in volumes:
        check_name(volume.get("name"), f"volume name in {where}", label=True)
        sources = [field for field in volume if field != "name"]
        if len(sources) != 1 or sources[0] not in _VOLUME_SOURCES:
            raise EngineError(
                f"{where}: volume {volume['name']} needs exactly one of {', '.join(_VOLUME_SOURCES)}."
            )
        _check_volume_source(sources[0], volume[sources[0]] or {}, f"{where}: volume {volume['name']}")
    _unique((volume["name"] for volume in volumes), f"{where}: volume name")
    return {volume["name"] for volume in volumes}


def _check_volume_source(kind: str, source: Mapping[str, Any], where: str) -> None:
    name_field = {
        "configMap": "name",
        "secret": "secretName",
        "persistentVolumeClaim": "claimName",
    }.get(kind)
    if name_field:
        check_name(source.get(name_field), f"{name_field} of {where}")
    if kind == "hostPath":
        path = PurePosixPath(str(source.get("path", "")))
        if not path.is_absolute():
            raise EngineError(f"{where}: hostPath needs an absolute path.")
        if is_device(source) and (path.parts[:2] != ("/", "dev") or ".." in path.parts):
            raise EngineError(f"{where}: a CharDevice must lie below /dev, {path} does not.")
    if kind == "emptyDir":
        if source.get("medium", "") not in ("", "Memory"):
            raise EngineError(f"{where}: emptyDir medium must be Memory or left out.")
        if "sizeLimit" in source:
            quantity(source["sizeLimit"], f"{where}: sizeLimit")
    for item in source.get("items") or []:
        path = PurePosixPath(str(item.get("path", "")))
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise EngineError(f"{where}: item path {item.get('path')!r} must stay inside the volume.")


def _check_container(container: Mapping[str, Any], volumes: set[str], where: str) -> None:
    check_name(container.get("name"), f"container name in {where}", label=True)
    where = f"{where}, container {container['name']}"
    _known(container, _CONTAINER, where)
    _known(container.get("securityContext") or {}, _CONTAINER_SECURITY, f"{where}: securityContext")
    _check_seccomp(container.get("securityContext") or {}, where)
    if (container.get("securityContext") or {}).get("privileged"):
        raise EngineError(f"{where}: a privileged container is the host's root; add single capabilities.")
    image = container.get("image")
    if not isinstance(image, str) or not image or any(sign.isspace() for sign in image):
        raise EngineError(f"{where}: image must be the name of an image.")
    for field in ("command", "args"):
        words = container.get(field) or []
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise EngineError(f"{where}: {field} must be a list of words, not {words!r}.")
    for variable in container.get("env") or []:
        if not variable.get("name") or "=" in variable["name"]:
            raise EngineError(f"{where}: an environment variable has no usable name.")
    for port in container.get("ports") or []:
        _check_port(port.get("containerPort"), f"{where}: containerPort")
        if "hostPort" in port:
            _check_port(port["hostPort"], f"{where}: hostPort")
    _check_mounts(container, volumes, where)
    _check_resources(container.get("resources") or {}, where)
    for field in ("readinessProbe", "livenessProbe", "startupProbe"):
        _check_probe(container.get(field), f"{where}: {field}")


def _check_mounts(container: Mapping[str, Any], volumes: set[str], where: str) -> None:
    for mount in container.get("volumeMounts") or []:
        if mount.get("name") not in volumes:
            raise EngineError(f"{where}: volume {mount.get('name')!r} is not one of the pod's volumes.")
        if not str(mount.get("mountPath", "")).startswith("/"):
            raise EngineError(f"{where}: mountPath must be an absolute path.")
        sub_path = PurePosixPath(mount.get("subPath", ""))
        if sub_path.is_absolute() or ".." in sub_path.parts:
            raise EngineError(f"{where}: subPath must stay inside the volume.")


def _check_port(value: object, what: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65535:
        raise EngineError(f"{what} is {value!r}; a port is a number from 1 to 65535.")


def _check_resources(resources: Mapping[str, Any], where: str) -> None:
    limits = resources.get("limits") or {}
    _known(limits, _LIMITS, f"{where}: resources.limits")
    for resource, value in limits.items():
        amount = quantity(value, f"{where}: limit {resource}")
        if amount == 0 and resource != "nvidia.com/gpu":
            raise EngineError(f"{where}: limit {resource} is 0; leave it out for no limit.")


def _check_probe(probe: Mapping[str, Any] | None, where: str) -> None:
    if probe is None:
        return
    actions = [action for action in _PROBE_ACTIONS if action in probe]
    if len(actions) != 1:
        raise EngineError(f"{where} needs exactly one of {' and '.join(_PROBE_ACTIONS)}.")
    if actions[0] == "tcpSocket":
        _check_port(probe["tcpSocket"].get("port"), f"{where}: port")
    elif actions[0] == "httpGet":
        _check_http(probe["httpGet"], where)
    elif not probe["exec"].get("command"):
        raise EngineError(f"{where}: exec has no command.")


def _check_http(action: Mapping[str, Any], where: str) -> None:
    _known(action, {"path", "port"}, f"{where}: httpGet")
    _check_port(action.get("port"), f"{where}: port")
    path = action.get("path", "/")
    if not isinstance(path, str) or not path.startswith("/") or not path.isprintable() or " " in path:
        raise EngineError(f"{where}: path {path!r} must begin with / and hold no spaces.")
