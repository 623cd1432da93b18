"""Tiers of tests.

fast   nothing outside of Python and short-lived tools: `make test-fast`
real   Podman, PostgreSQL, a browser, network namespaces, clients and servers in processes of their own
e2e    clouds with Slurm, QEMU or vLLM
long   what takes a minute or more by its nature: `make test-long`, and no other verb
"""

from functools import cache

import pytest

E2E = (
    "tests/e2e",
    "tests/conformance/test_dstack.py",
    "tests/conformance/test_skypilot.py",
    "tests/images/machines",
    "tests/objects/oci/test_more_programs.py",
    "tests/objects/s3/test_more_programs.py",
    "tests/security/test_machine_sandbox.py",
    "tests/security/test_slurm_escape.py",
)
REAL = (
    "tests/cli/test_fleet_check.py",
    "tests/cli/test_machine.py",
    "tests/cli/test_storage_mount.py",
    "tests/cli/test_storage_streams.py",
    "tests/conformance/openai",
    "tests/emulator",
    "tests/engines/podman/test_lan.py",
    "tests/engines/podman/test_named_namespaces.py",
    "tests/fleet/active/test_programs.py",
    "tests/fleet/agent/test_carry.py",
    "tests/fleet/test_outside_audit.py",
    "tests/gateway/api/test_bad_input.py",
    "tests/gateway/compiled/test_real_compiler.py",
    "tests/gateway/metering/test_crash.py",
    "tests/gateway/openai_files/test_batch_survives_kill.py",
    "tests/gateway/pages",
    "tests/gateway/routing/test_faults.py",
    "tests/gateway/routing/test_responses.py",
    "tests/gateway/test_other_machines.py",
    "tests/guides/test_on_emulator.py",
    "tests/guides/test_teams_cloud.py",
    "tests/objects/inventories/test_faults.py",
    "tests/objects/s3/test_programs.py",
    "tests/objects/test_crash.py",
    "tests/objects/transfers/test_faults.py",
    "tests/recipes/test_dataset_tokenize.py",
    "tests/recipes/test_finetune.py",
    "tests/recipes/test_lm_eval_tasks.py",
    "tests/recipes/test_step_times.py",
    "tests/recipes/test_tuning_job.py",
    "tests/security/test_fuzz.py",
    "tests/security/test_fuzz_gateway.py",
    "tests/security/test_gateway_capacity.py",
    "tests/security/test_gateway_connections.py",
    "tests/security/test_gateway_hosts.py",
    "tests/security/test_gateway_requests.py",
    "tests/security/test_gateway_rights.py",
    "tests/security/test_gateway_source.py",
    "tests/security/test_home.py",
    "tests/security/test_secrets.py",
    "tests/server/test_killed_server.py",
    "tests/services/billing/test_pricing_policies.py",
    "tests/services/slurm/test_kill.py",
    "tests/test_wheel.py",
)
REAL_FIXTURES = {"busybox_root", "metrics_program", "postgres"}
"""Whatever uses one of these is of the tier `real`, too, and so is what has the parameter "postgresql"."""
LONG = (
    "tests/conformance/test_dstack.py",
    "tests/conformance/test_skypilot.py",
    "tests/e2e/inference/test_dataset.py",
    "tests/e2e/inference/test_evaluation.py",
    "tests/e2e/inference/test_serving.py::test_an_engine_that_is_killed",
    "tests/e2e/inference/test_tuning.py::test_a_job_on_two_nodes",
    "tests/e2e/inference/test_tuning.py::test_a_job_whose_pod_is_killed",
    "tests/e2e/test_cluster_backup.py",
    "tests/e2e/test_active_checks.py",
    "tests/e2e/test_cluster_people.py::test_a_drained_login_node",
    "tests/e2e/test_cluster_people.py::test_users_come_and_go_by_the_hundred",
    "tests/e2e/test_container_faults.py::test_a_step_that_waits_for_a_registry",
    "tests/e2e/test_controllers.py::test_one",
    "tests/e2e/test_controllers.py::test_two",
    "tests/e2e/test_elastic.py",
    "tests/e2e/test_maintenance.py",
    "tests/e2e/test_outside_audit.py::test_the_audit_of_a_machine",
    "tests/e2e/test_preemption.py",
    "tests/e2e/test_training.py",
    "tests/e2e/test_topology.py::test_a_job_that_fits_into_one_block",
    "tests/e2e/test_two_clouds.py",
    "tests/emulator/test_terraform.py",
    "tests/emulator/test_upgrade.py::test_a_release",
    "tests/emulator/test_upgrade.py::test_an_upgrade_that_a_power_cut_ended",
    "tests/fleet/test_long_walk.py",
    "tests/images/machines/test_boot.py::test_a_full_machine",
    "tests/images/machines/test_cloud_config.py",
    "tests/services/fleet/test_kill.py",
    "tests/objects/oci/test_more_programs.py",
    "tests/objects/s3/test_more_programs.py",
)
"""What the ids of these tests begin with. Most are of the tier `e2e`, too (decision 0028)."""


def tier_of(item: pytest.Item) -> str:
    file = item.nodeid.partition("::")[0]
    if is_below(file, E2E):
        return "e2e"
    callspec = getattr(item, "callspec", None)
    parameters = callspec.params.values() if callspec else ()
    fixtures = REAL_FIXTURES & set(getattr(item, "fixturenames", ()))
    has_database = any(value == "postgresql" for value in parameters if isinstance(value, str))
    return "real" if fixtures or has_database or is_below(file, REAL) else "fast"


@cache  # asked of each test, and again of each group whenever a worker takes one: half a minute in all
def is_below(file: str, paths: tuple[str, ...]) -> bool:
    return any(file == path or file.startswith(f"{path}/") for path in paths)
