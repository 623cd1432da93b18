# pyright: standard
"""Conformance of networks: namespaces, rules and addresses."""

import pytest

from neocloud.engines.base import (
    EngineError,
)
from neocloud.engines.manifest.base import PLATFORM_SERVICES_ANNOTATION
from neocloud.testing.engine_space import OPEN_RULES, SERVE, Bench, Space, on_network
from neocloud.testing.waiting import until


@pytest.mark.asyncio(loop_scope="module")
class NetworkConformance:
    async def test_pods_of_a_namespace_find_and_reach_each_other(self, space: Space) -> None:
        front = space.manifest("Service", "front", spec={"selector": {"role": "front"}})
        server = space.pod("server-0", SERVE, labels={"role": "front"}, hostname="server")
        await space.apply(front, server, space.pod("client"))
        for name in ("server", "front"):
            await until(lambda name=name: space.reaches("client", name))

    async def test_namespaces_do_not_reach_each_other(self, space: Space, bench: Bench) -> None:
        if not (await bench.engine.capabilities()).isolates_namespaces:
            return
        other = Space(bench.engine, bench.image)
        await other.apply(other.namespace())
        try:
            await space.apply(space.pod("server", SERVE), space.pod("neighbour"))
            await other.apply(other.pod("outsider"))
            server = await space.until("server", lambda pod: pod.ready)
            assert server.ip
            await until(lambda: space.reaches("neighbour", server.ip or ""))
            assert not await other.reaches("outsider", server.ip)
            assert not await other.reaches("outsider", "server")
        finally:
            await other.remove("Namespace", other.name)

    async def test_members_of_a_network_find_and_reach_each_other(self, space: Space, bench: Bench) -> None:
        other = Space(bench.engine, bench.image)
        await other.apply(other.namespace())
        try:
            await space.apply(space.network("lab", 1, *OPEN_RULES))
            server = on_network(other.pod("server", SERVE), space.name, "10.210.1.9")
            client = on_network(space.pod("client"), space.name, "10.210.1.8")
            await other.apply(server)
            await space.apply(client, space.pod("outsider"))
            found = await other.until("server", lambda pod: pod.ready)
            assert found.ip == "10.210.1.9"
            for name in ("server", "server.lab.internal", "10.210.1.9"):
                await until(lambda name=name: space.reaches("client", name))
            assert not await space.reaches("outsider", "10.210.1.9")
            assert b"server" not in await space.read("outsider", "/etc/hosts")
            with pytest.raises(EngineError, match="in use by pod"):
                await space.remove("VirtualNetwork", "lab")
        finally:
            await other.remove("Namespace", other.name)
        await space.remove("Pod", "client")
        await space.remove("VirtualNetwork", "lab")
        seen = await space.engine.observe(space.name)
        assert "VirtualNetwork" not in {reference.kind for reference in seen.others}

    async def test_rules_of_a_network_change_under_running_pods(self, space: Space) -> None:
        server = on_network(space.pod("server", SERVE), space.name, "10.210.2.9")
        client = on_network(space.pod("client"), space.name, "10.210.2.8")
        await space.apply(space.network("lab", 2), server, client)
        before = await space.until("server", lambda pod: pod.ready)
        assert not await space.reaches("client", "10.210.2.9")
        await space.apply(space.network("lab", 2, *OPEN_RULES))
        await until(lambda: space.reaches("client", "10.210.2.9"))
        await space.apply(on_network(space.pod("server", SERVE), space.name, "10.210.2.9", securityGroups=[]))
        assert not await space.reaches("client", "10.210.2.9")
        assert await space.seen("server") == before

    async def test_changed_address_replaces_the_pod(self, space: Space) -> None:
        await space.apply(space.network("lab", 3), on_network(space.pod("one"), space.name, "10.210.3.9"))
        await space.run("one", "tee", "/tmp/mark", stdin=b"here")
        await space.apply(on_network(space.pod("one"), space.name, "10.210.3.10"))
        after = await space.until("one", lambda pod: pod.ready)
        assert after.ip == "10.210.3.10" and await space.read("one", "/tmp/mark") == b""

    async def test_pod_that_does_not_fit_its_network_is_refused(self, space: Space) -> None:
        await space.apply(space.network("lab", 4), on_network(space.pod("one"), space.name, "10.210.4.9"))
        for address, changes, message in [
            ("10.210.5.8", {}, "not in subnet"),
            ("10.210.4.9", {"mac": "52:54:00:00:01:00"}, "held by pod one"),
            ("10.210.4.7", {"network": "never-applied"}, "apply it before"),
            ("10.210.4.7", {"subnet": "other"}, "no subnet other"),
        ]:
            fields = {"network": space.name, **changes}
            with pytest.raises(EngineError, match=message):
                await space.apply(on_network(space.pod("two"), address=address, **fields))
            assert await space.seen("two") is None

    async def test_namespace_reaches_a_platform_service_that_it_names(
        self, space: Space, bench: Bench
    ) -> None:
        service = bench.platform_service
        await space.apply(space.pod("client"))
        assert not await space.reaches("client", str(service.address))
        assert service.host_name.encode() not in await space.read("client", "/etc/hosts")
        await space.apply(space.policy(service.name, "unknown"))
        await until(lambda: space.reaches("client", service.host_name))
        await space.apply(space.policy())
        assert not await space.reaches("client", service.host_name)
        assert not await space.reaches("client", str(service.address))

    async def test_member_reaches_a_platform_service_by_its_rules(self, space: Space, bench: Bench) -> None:
        service = bench.platform_service
        network = space.network("lab", 6, *OPEN_RULES)
        named = {**network["metadata"], "annotations": {PLATFORM_SERVICES_ANNOTATION: service.name}}
        # The policy is for the namespace's own network: it opens nothing on another.
        await space.apply(network, space.policy(service.name))
        await space.apply(on_network(space.pod("client"), space.name, "10.210.6.8"))
        assert not await space.reaches("client", str(service.address))
        await space.apply({**network, "metadata": named})
        await until(lambda: space.reaches("client", service.host_name))
        await space.apply({**space.network("lab", 6, OPEN_RULES[0]), "metadata": named})
        assert not await space.reaches("client", service.host_name)
