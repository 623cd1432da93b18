"""Limits of a tenant's view of a shared cloud: the machine, and with an emulator others' calls."""

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from neocloud.messages.neocloud.emulator.v1 import ClearFaultsRequest, ListFaultsRequest

from neocloud.control_plane import lifecycle
from neocloud.control_plane.composition import compose
from neocloud.core import contract
from neocloud.core.clock import SystemClock
from neocloud.core.contract import ApiError
from neocloud.core.readers import ServiceRegistry, Subject
from neocloud.core.service import Call, Dependencies, register_services
from neocloud.core.store import Store, open_store
from neocloud.engines.fake import FakeEngine
from neocloud.services import iam
from neocloud.services.emulator import FaultRegistry, Incidents
from neocloud.services.emulator.api import clear, inject, list_faults
from neocloud.settings.settings import Settings
from tests.control_plane import plain_dependencies
from tests.fast.services.iam import keys

Request = contract.message("neocloud.emulator.v1.InjectFaultRequest")
PATH = "nebius.compute.v1.DiskService/Create"
SECRET_KEYS = {"home", "engine", "database"}


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    opened = await open_store(":memory:", b"k" * 32, SystemClock())
    yield opened
    await opened.close()


async def account_of(store: Store, tenant_name: str) -> Subject:
    key = keys.rsa_key if tenant_name == "first" else keys.other_rsa_key
    first = await iam.bootstrap(store, SystemClock(), tenant_name=tenant_name, make_key=key)
    return Subject(first.service_account_id, "service_account", "admin", first.tenant_id)


async def test_the_status_tells_the_machine_to_its_operator_only(store: Store, tmp_path: Path) -> None:
    clock = SystemClock()
    operator, other = [await account_of(store, name) for name in ("first", "other")]
    settings, engine = Settings(home=tmp_path), FakeEngine()
    composition = compose(settings, engine, clock)
    dependencies = Dependencies(store, clock, engine, settings, composition.provided.copy())
    register_services(composition.services, dependencies)
    authorizer = iam.StoreAuthorizer(store, clock)
    nobody = Subject("serviceaccount-e00x", "service_account", "no rights", operator.tenant_id)
    for subject, is_told in ((operator, True), (other, False), (nobody, False)):
        told = await lifecycle._status(
            composition, operator.tenant_id, authorizer, subject, None, dependencies
        )
        assert ("reports" in told) is is_told, "buckets and keys of others"
        assert (told.keys() >= SECRET_KEYS) is is_told
        assert (str(tmp_path) in str(told)) is is_told
        assert (
            told["version"]
            and "compute" in cast(list[str], told["services"])
            and told["is_emulator"] is False
        )


def call(book: FaultRegistry, tenant_id: str, store: Any = None, incidents: Any = None) -> Call:
    subject = Subject(f"serviceaccount-of-{tenant_id}", "service_account", "admin", tenant_id)
    provided = ServiceRegistry().add(FaultRegistry, book).add(Incidents, incidents)
    return Call(subject, "", {}, plain_dependencies(store, SystemClock(), provided))


def refusal() -> Any:
    request = Request()
    request.spec.calls, request.spec.unlimited = "DiskService/Create", True
    request.spec.no_capacity.SetInParent()
    return request


async def test_faults_meet_the_calls_of_the_tenant_that_injected_them() -> None:
    book = FaultRegistry(SystemClock())
    fault = await inject(call(book, "one"), refusal())
    assert len(book.match("one", PATH)) == 1
    assert book.match("two", PATH) == []
    assert len((await list_faults(call(book, "one"), ListFaultsRequest())).items) == 1
    assert len((await list_faults(call(book, "two"), ListFaultsRequest())).items) == 0
    with pytest.raises(ApiError):
        await clear(call(book, "two"), ClearFaultsRequest(id=fault.id))
    await clear(call(book, "two"), ClearFaultsRequest(id=""))
    assert len(book.match("one", PATH)) == 1


async def test_callers_that_nobody_knows_meet_no_ones_faults_where_there_are_several() -> None:
    book = FaultRegistry(SystemClock())
    await inject(call(book, "one"), refusal())
    assert len(book.match("", PATH)) == 1, "a client's test of its sign-in needs it"
    await inject(call(book, "two"), refusal())
    assert book.match("", PATH) == []


async def test_a_fault_cannot_be_caused_to_another_tenants_resource(store: Store) -> None:
    operator, other = [await account_of(store, name) for name in ("first", "other")]
    preempted: list[str] = []

    async def preempt(resource_id: str) -> str:
        preempted.append(resource_id)
        return "Preempted."

    request = Request()
    request.spec.resource_id = operator.id
    request.spec.preemption.SetInParent()
    book, incidents = FaultRegistry(SystemClock()), SimpleNamespace(preempt=preempt)
    with pytest.raises(ApiError) as refused:
        await inject(call(book, other.tenant_id, store, incidents), request)
    assert refused.value.code is contract.Code.NOT_FOUND and not preempted
    await inject(call(book, operator.tenant_id, store, incidents), request)
    assert preempted == [operator.id]
