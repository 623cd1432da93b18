# pyright: standard
"""Conformance of volumes, configuration and secrets."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from neocloud.engines.base import (
    EngineError,
    KubernetesObject,
)
from neocloud.engines.manifest import read_manifest
from neocloud.testing.engine_space import Bench, Space, mounted

MEBIBYTE = 2**20

_SHOWN = {"name": "attached-claims", "mountPath": "/attached", "readOnly": True}
_SHOWING: dict[str, Any] = {
    "volumes": [{"name": "attached-claims", "emptyDir": {}}],
    "container": {"volumeMounts": [{**_SHOWN, "mountPropagation": "HostToContainer"}]},
}


def _with_attached(space: Space, claims: Mapping[str, str]) -> KubernetesObject:
    """The pod "one" with these claims, by name and namespace."""
    pod = space.pod("one", **_SHOWING)
    attached = {name: {"namespace": namespace, "readOnly": False} for name, namespace in claims.items()}
    pod["metadata"]["annotations"] = {"neocloud.dev/attached-claims": json.dumps(attached)}
    return pod


@pytest.mark.asyncio(loop_scope="module")
class VolumeConformance:
    async def test_changed_config_shows_in_the_running_pod(self, space: Space) -> None:
        def config(value: str) -> KubernetesObject:
            return space.manifest("ConfigMap", "settings", data={"key": value})

        pod = space.pod("one", **mounted({"configMap": {"name": "settings"}}, "/settings"))
        await space.apply(config("old"), pod)
        before = await space.seen("one")
        assert await space.read("one", "/settings/key") == b"old"
        await space.apply(config("new"))
        assert await space.read("one", "/settings/key") == b"new"
        assert await space.seen("one") == before

    async def test_secret_arrives_decoded(self, space: Space) -> None:
        raw = bytes(range(256))
        data = {"token": base64.b64encode(raw).decode()}
        pod = space.pod("one", **mounted({"secret": {"secretName": "login"}}, "/login", readOnly=True))
        await space.apply(space.manifest("Secret", "login", data=data), pod)
        assert await space.read("one", "/login/token") == raw

    async def test_pod_without_its_secret_is_refused(self, space: Space) -> None:
        pod = space.pod("one", **mounted({"secret": {"secretName": "absent"}}, "/login"))
        with pytest.raises(EngineError, match="absent"):
            await space.apply(pod)

    async def test_volume_outlives_its_pod_but_not_its_removal(self, space: Space) -> None:
        volume = {"persistentVolumeClaim": {"claimName": "data"}}
        await space.apply(space.claim("data"), space.pod("one", **mounted(volume, "/data")))
        await space.run("one", "tee", "/data/file", stdin=b"kept")
        with pytest.raises(EngineError, match="in use"):
            await space.remove("PersistentVolumeClaim", "data")
        await space.remove("Pod", "one")
        await space.apply(space.claim("data"), space.pod("two", **mounted(volume, "/data")))
        assert await space.read("two", "/data/file") == b"kept"
        await space.remove("Pod", "two")
        await space.remove("PersistentVolumeClaim", "data")
        await space.apply(space.claim("data"), space.pod("two", **mounted(volume, "/data")))
        assert await space.read("two", "/data/file") == b""

    async def test_volume_of_another_namespace_is_mounted_where_the_pod_says_so(
        self, space: Space, bench: Bench
    ) -> None:
        """Disks move between machines, and filesystems are shared."""
        other = Space(bench.engine, bench.image)
        await other.apply(other.namespace(), other.claim("data"))
        pod = space.pod("one", **mounted({"persistentVolumeClaim": {"claimName": "data"}}, "/data"))
        try:
            with pytest.raises(EngineError, match="does not exist"):
                await space.apply(pod)
            pod["metadata"]["annotations"] = {"neocloud.dev/claims": f'{{"data": "{other.name}"}}'}
            await space.apply(pod)
            await space.run("one", "tee", "/data/file", stdin=b"shared")
            for what in (other.reference("PersistentVolumeClaim", "data"), other.whole):
                with pytest.raises(EngineError, match="in use"):
                    await bench.engine.remove([what])
            await space.remove("Pod", "one")
            await other.apply(
                other.pod("two", **mounted({"persistentVolumeClaim": {"claimName": "data"}}, "/data"))
            )
            assert await other.read("two", "/data/file") == b"shared"
        finally:
            await space.engine.remove([space.reference("Pod", "one"), other.whole])

    async def test_claims_come_and_go_while_their_pod_runs(self, space: Space, bench: Bench) -> None:
        """Disks are attached to machines, and detached from them."""
        other = Space(bench.engine, bench.image)
        await other.apply(other.namespace(), other.claim("data"), other.claim("more"))
        await space.apply(space.pod("one", **_SHOWING))
        before = await space.seen("one")
        assert (await space.run("one", "cat", "/attached/data/file")).exit_code != 0
        try:
            await space.apply(_with_attached(space, {"data": other.name, "more": other.name}))
            await space.run("one", "tee", "/attached/data/file", stdin=b"data")
            await space.run("one", "tee", "/attached/more/file", stdin=b"more")
            for what in (other.reference("PersistentVolumeClaim", "data"), other.whole):
                with pytest.raises(EngineError, match="in use"):
                    await bench.engine.remove([what])
            reopened = bench.reopened()
            try:
                await reopened.apply([read_manifest(_with_attached(space, {"more": other.name}))])
            finally:
                await reopened.close()
            assert (await space.run("one", "cat", "/attached/data/file")).exit_code != 0
            assert await space.read("one", "/attached/more/file") == b"more"
            await other.apply(
                other.pod("two", **mounted({"persistentVolumeClaim": {"claimName": "data"}}, "/data"))
            )
            assert await other.read("two", "/data/file") == b"data"
            assert await space.seen("one") == before, "the pod runs as before"
        finally:
            await space.engine.remove([space.reference("Pod", "one"), other.whole])

    async def test_a_claim_can_only_be_attached_to_a_pod_that_shows_it(self, space: Space) -> None:
        pod = _with_attached(space, {"data": space.name})
        pod["spec"]["volumes"] = pod["spec"]["containers"][0]["volumeMounts"] = []
        with pytest.raises(EngineError, match="attached-claims"):
            await space.apply(space.claim("data"), pod)
        with pytest.raises(EngineError, match="does not exist"):
            await space.apply(_with_attached(space, {"absent": space.name}))

    async def test_a_filesystem_holds_its_size_and_grows(self, space: Space) -> None:
        """Programs that write more get ENOSPC; other volumes are not full."""
        volume = mounted({"persistentVolumeClaim": {"claimName": "small"}}, "/data")
        other = mounted({"persistentVolumeClaim": {"claimName": "other"}}, "/data")
        content = b"x" * (24 * MEBIBYTE)
        pods = space.pod("one", **volume), space.pod("two", **other)
        await space.apply(space.claim("small", "20Mi"), space.claim("other", "100Mi"), *pods)
        refused = await space.run("one", "tee", "/data/file", stdin=content, max_output_bytes=2**26)
        assert refused.exit_code == 1
        written = await space.run("two", "tee", "/data/file", stdin=content, max_output_bytes=2**26)
        assert written.exit_code == 0
        await space.remove("Pod", "one")
        await space.apply(space.claim("small", "64Mi"), space.pod("one", **volume))
        written = await space.run("one", "tee", "/data/file", stdin=content, max_output_bytes=2**26)
        assert written.exit_code == 0
        with pytest.raises(EngineError, match="cannot shrink"):
            await space.apply(space.claim("small", "20Mi"))

    async def test_a_container_s_disk_holds_its_limit(self, space: Space, bench: Bench) -> None:
        """A full disk is an error of the program that writes, in that container only, and stays full."""
        limited = {
            "image": bench.root_filesystem,
            "resources": {"limits": {"ephemeral-storage": "20Mi"}},
        }
        pods = [space.pod(name, container=limited) for name in ("one", "two")]
        await space.apply(*pods)
        content = b"x" * (24 * MEBIBYTE)
        before = await space.seen("one")
        for command in (["tee", "/tmp/file"], ["tee", "/file"]):
            refused = await space.run("one", *command, stdin=content, max_output_bytes=2**26)
            assert refused.exit_code == 1
        assert await space.seen("one") == before
        written = await space.run("two", "tee", "/tmp/file", stdin=b"fits")
        assert written.exit_code == 0
        await space.engine.restart(space.reference("Pod", "two"))
        assert await space.read("two", "/tmp/file") == b"fits"
        await space.remove("Pod", "two")
        await space.apply(pods[1])
        assert await space.read("two", "/tmp/file") == b""

    async def test_copied_volume_is_independent_of_its_source(self, space: Space, bench: Bench) -> None:
        other = Space(bench.engine, bench.image)
        await other.apply(other.namespace())
        volume = mounted({"persistentVolumeClaim": {"claimName": "data"}}, "/data")
        copied = other.claim("data")
        copied["spec"]["dataSourceRef"] = {
            "kind": "PersistentVolumeClaim",
            "name": "data",
            "namespace": space.name,
        }
        try:
            with pytest.raises(EngineError, match="does not exist"):
                await other.apply(copied)
            await space.apply(space.claim("data"), space.pod("one", **volume))
            await space.run("one", "tee", "/data/file", stdin=b"first")
            await other.apply(copied, other.pod("two", **volume))
            assert await other.read("two", "/data/file") == b"first"
            copy = other.reference("PersistentVolumeClaim", "data")
            assert await bench.engine.stored_bytes(copy) < 2**20, "not the size of the claim"
            await other.run("two", "tee", "/data/file", stdin=b"second")
            await other.apply(copied)
            assert await other.read("two", "/data/file") == b"second"
            assert await space.read("one", "/data/file") == b"first"
            with pytest.raises(EngineError, match="another dataSourceRef"):
                await other.apply(other.claim("data"))
        finally:
            await other.remove("Namespace", other.name)

    async def test_processes_of_this_machine_and_pods_see_the_same_files_of_a_filesystem(
        self, space: Space, bench: Bench
    ) -> None:
        data = space.reference("PersistentVolumeClaim", "data")
        with pytest.raises(EngineError, match="filesystem that exists"):
            await bench.engine.shared_folder(data)
        volume = mounted({"persistentVolumeClaim": {"claimName": "data"}}, "/data")
        await space.apply(space.claim("data"), space.pod("one", **volume))
        await space.run("one", "tee", "/data/file", stdin=b"of a pod")
        assert (await bench.engine.capabilities()).shares_filesystems
        folder = Path(await bench.engine.shared_folder(data))
        assert (folder / "file").read_bytes() == b"of a pod"
        (folder / "other").write_bytes(b"of a process")
        assert await space.read("one", "/data/other") == b"of a process"
        await space.run("one", "tee", "/data/file", stdin=b"again")
        assert await bench.engine.shared_folder(data) == str(folder)
        assert (folder / "file").read_bytes() == b"again"
        await space.remove("Pod", "one")
        await space.remove("PersistentVolumeClaim", "data")
        with pytest.raises(EngineError, match="filesystem that exists"):
            await bench.engine.shared_folder(data)

    async def test_containers_of_a_pod_share_scratch_space(self, space: Space) -> None:
        pod = space.pod("pair", **mounted({"emptyDir": {"medium": "Memory"}}, "/scratch"))
        first = pod["spec"]["containers"][0]
        pod["spec"]["containers"].append({**first, "name": "second"})
        await space.apply(pod)
        await space.run("pair", "tee", "/scratch/file", stdin=b"shared")
        result = await space.run("pair", "cat", "/scratch/file", container="second")
        assert result.stdout == b"shared"
