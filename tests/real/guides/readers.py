"""The reader's files for each page, and each command that is not run as written, with the reason.

A command that is not listed is run on the emulator, in order. One that is listed and no longer on its page is
a failure, and so is a reason that names a test which is not there.
"""

from collections.abc import Mapping

from tests.real.guides.session import Reader

REAL_CLUSTER = "real Slurm: tests/e2e/test_lifecycle.py::test_getting_started_works_as_written"
CHECK = (
    "real Slurm: tests/e2e/test_cluster.py"
    "::test_every_check_of_a_healthy_cluster_passes_except_gpus_which_are_not_run"
)
CONTAINERS = "real Slurm: tests/e2e/test_slurm_guides.py::test_the_page_of_containers_works_as_written"
SSH_BETWEEN_NODES = (
    "real Slurm: tests/e2e/test_ssh_between_nodes.py"
    "::test_in_a_job_ssh_reaches_each_node_of_it_without_a_password"
)
MPI = "real Slurm: tests/e2e/test_slurm_guides.py::test_the_page_of_mpi_works_as_written"
USERS = "real Slurm: tests/e2e/test_ssh_between_nodes.py::test_a_user_signs_in_and_is_the_same_everywhere"
PEOPLE = "tests/e2e/test_cluster_people.py, as a person"
REAL_MACHINE = "real QEMU: tests/e2e/test_machines.py::test_its_owner_signs_in_at_the_public_address"
MAINTAINED = "a real host: tests/long/test_maintenance.py::test_a_host_is_maintained"
IMPORTED = "needs a disk: tests/fast/cli/test_machine_disks.py"
REAL_MODEL = "real vLLM: tests/e2e/inference/test_serving.py::test_clients_call_it_by_the_gateway"
FEWER_BITS = "tests/fast/cli/test_deploy.py, and tests/e2e/inference/test_smollm2.py with a real model"
ON_A_WORKER = "tests/e2e/inference/test_on_slurm.py"
QUESTIONS = "tests/fast/cli/test_model_quality.py, and tests/e2e/inference/test_smollm2.py with a real model"
ONE_GPU = "tests/fast/test_on_a_gpu.py, and tests/long/test_on_a_gpu.py with the parts for CPUs"
MINILM = "real vLLM: tests/e2e/inference/test_embeddings.py::test_it_puts_the_right_passage_first"
DOCUMENTS = (
    "real vLLM: tests/e2e/inference/test_embeddings.py::test_a_question_is_answered_from_documents;"
    " tests/fast/cli/test_vector_store.py"
)
SMOLLM2 = "real vLLM: tests/e2e/inference/test_smollm2.py::test_it_answers_right_at_its_own_temperature"
REAL_TUNING = "real vLLM: tests/e2e/inference/test_documentation.py::test_a_file_becomes_a_model_that_answers"
REAL_DATASET = "real vLLM: tests/long/inference/test_dataset.py::test_data_go_in_and_a_model_comes_out"
PAUSED = (
    "real Slurm: tests/e2e/inference/test_tuning.py"
    "::test_a_job_on_two_nodes_is_paused_and_ends_in_a_model_that_a_call_wakes"
)
RECIPES = "real Slurm: tests/long/test_training.py::test_the_report_is_read_as_written"
AUDITOR = "tests/long/test_outside_audit.py::test_the_scorecard_reads_the_report_check_by_check"
LARGER = "needs four nodes with GPUs, and a model from a hub"
WATCHED = "needs a terminal: tests/fast/cli/test_fleet_top.py::test_on_a_terminal_ctrl_c_ends_it_cleanly"
COLLECTED = (
    "the emulator has no metrics: tests/fast/monitoring/test_history.py"
    "::test_a_cloud_starts_its_store_and_collects_from_itself"
)
EXPORTER = "tests/fast/monitoring/test_history.py::test_an_exporter_cannot_write_into_another_project"
QUERIED = (
    "the emulator has no metrics: tests/fast/monitoring/test_history.py"
    "::test_what_the_control_plane_tells_is_kept_and_shown_by_project"
)
IMAGES = "needs the Debian mirror for minutes: `make demo`, tests/fast/images, tests/fast/cli/test_images.py"
INTERNET = "needs the internet"
TRUST = "changes what the whole machine trusts: tests/long/conformance/trust.py does it for one process"
SKYPILOT = (
    "tests/long/conformance/test_skypilot.py::test_a_machine_is_launched_stopped_started_and_taken_down"
)
TEAMS_CLOUD = "needs two machines: tests/real/guides/test_teams_cloud.py::test_a_colleague_follows_the_page"
FAR_CLUSTER = "real Slurm: tests/long/test_two_clouds.py::test_ssh_and_scp_work_from_a_laptop"
LAPTOP = (
    "needs a gateway: "
    "tests/real/model_gateway/test_other_machines.py::test_the_openai_client_works_from_a_laptop"
)
GATEWAY = "the emulator has no gateway: tests/real/conformance/openai/test_guide.py::test_a_snippet_runs"
CHAT = (
    "the emulator has no gateway: tests/real/model_gateway/pages/test_chat_command.py"
    "::test_the_link_opens_the_models_that_were_named"
)
EVALUATION = (
    "the emulator has no gateway: tests/long/inference/test_evaluation.py::test_a_model_is_as_good_as_itself"
)
ASKED = "the emulator has no gateway: tests/e2e/inference/test_documentation.py::test_a_question_is_asked"
GATED = (
    "needs a job that has ended: tests/fast/services/inference/test_gates.py"
    "::test_a_withheld_adapter_is_neither_loaded_nor_routed_until_it_is_overridden"
)
RELEASED = (
    "the emulator has no gateway: tests/real/model_gateway/routing/test_releases.py"
    "::test_a_candidate_answers_its_share_and_is_counted"
)
TRACED = (
    "needs a job that has ended: tests/fast/services/tuning/test_lineage.py"
    "::test_a_model_is_traced_from_data_to_cost"
)
LM_EVAL = "needs lm-eval: tests/real/recipes/test_lm_eval_tasks.py"
MOUNT = (
    "needs FUSE: tests/real/emulator/test_storage_commands.py::test_a_bucket_is_mounted_until_it_is_unmounted"
)
MACHINE_MOUNT = (
    "real QEMU: tests/long/test_bucket_mounts.py"
    "::test_a_machine_mounts_a_bucket_with_the_key_of_a_service_account"
)
EXAMPLE = "tests/real/emulator/test_guide.py::test_the_example_of_the_guide_passes"
DSTACK = "tests/long/conformance/test_dstack.py::test_dstack_creates_reaches_and_terminates_a_machine"
STORAGE_KEYS = "real Slurm: tests/e2e/test_storage_keys_in_jobs.py"
STORAGE_JOB = "real Slurm: tests/e2e/test_storage_from_nodes.py::test_a_job_uses_object_storage_by_name"
OTHER_ENGINE = "needs another engine: tests/real/emulator/test_object_blobs.py::test_bodies_in_another_engine"
POSTGRESQL = "needs PostgreSQL: tests/real/emulator/test_object_metadata.py::test_metadata_in_postgresql"
FILESYSTEM_BUCKET = (
    "needs real files: tests/fast/engines/podman/test_filesystem_buckets.py"
    "::test_a_filesystem_of_the_engine_is_a_bucket_of_the_gateway"
)
IMAGE_CLIENTS = (
    "has files of its own: tests/real/emulator/test_registry.py::test_podman_pushes_pulls_and_is_refused"
)
IMAGE_JOBS = (
    "needs an image that was pushed:"
    " tests/e2e/test_ai_workloads.py::test_images_of_a_registry_run_and_are_removed"
)
MIRRORS = (
    "needs the internet: "
    "tests/long/object_gateway/oci/test_more_programs.py::test_a_registry_of_docker_is_mirrored"
)
PUSHED_IMAGES = (
    "needs a built image: tests/real/emulator/test_pushes.py::test_images_of_the_cloud_are_pulled_by_podman"
)
PUSHED_MODELS = "needs a model and oras: tests/real/emulator/test_pushes.py::test_oras_pulls_what_neo_pushed"
ORAS_MODELS = (
    "needs a model and oras: tests/fast/services/inference/test_registry_models.py"
    "::test_what_oras_pushed_is_a_model"
)
IMAGE_REPORT = (
    "needs an image and advisories:"
    " tests/real/emulator/test_registry.py::test_buildah_pushes_an_index_and_the_cloud_reports_on_its_image"
)
HOWTO = "tests/fast/test_howto.py::test_the_service_of_the_guide_serves_what_it_says"

ADMINISTRATION = (
    "real Slurm: tests/e2e/test_slurm_administration.py"
    "::test_a_qos_that_may_preempt_takes_nodes_from_a_job_which_runs_again_later"
)
BROKEN_WORKER = "real Slurm: tests/e2e/test_fleet.py::test_a_broken_workers_job_runs_again_on_the_spare"
CLUSTER_BACKUP = "real Slurm: tests/long/test_cluster_backup.py::test_a_cluster_comes_back_from_its_backup"
SLURM_REST = (
    "real Slurm: tests/e2e/test_slurm_administration.py"
    "::test_a_client_of_slurms_rest_api_works_with_a_token_of_the_cloud"
)

HOST_CHECK = (
    "fails on a host with faults: tests/real/cli/test_fleet_check.py"
    "::test_a_healthy_host_passes_and_a_table_says_what_was_not_run"
)
HOST_AGENT = (
    "lasts until Ctrl-C: "
    "tests/real/cli/test_fleet_check.py::test_the_agent_writes_records_until_it_is_stopped"
)
HOST_ARCHIVE = "of another host: tests/fast/fleet/agent/test_watch.py::test_the_archive_runs_on_a_bare_python"
IDLE_WORKER = (
    "real Slurm: "
    "tests/long/test_active_checks.py::test_a_job_ends_a_running_test_and_idle_workers_are_covered"
)
WORKER_AGENT = (
    "real Slurm: tests/e2e/test_fleet.py"
    "::test_a_job_does_not_start_where_the_agents_last_verdict_is_that_the_node_is_broken"
)
WINDOW = (
    "its date passes: tests/e2e/test_fleet.py"
    "::test_a_maintenance_window_is_announced_in_slurm_and_ends_no_job"
)
REPAIR = (
    "needs an idle spare: tests/fast/services/fleet/test_break_fix.py"
    "::test_a_replaced_node_is_a_ticket_that_opens_and_closes"
)
COMPARED = (
    "minutes of simulation, with files of the reader: tests/fast/cli/test_fleet_compare.py"
    "::test_the_script_of_ci_compares_a_tree_with_a_commit"
)
JUDGED = (
    "needs a failing check: tests/fast/services/fleet/test_judging.py"
    "::test_a_check_that_tests_refute_drains_nothing_and_operators_have_the_last_word"
)
DRAINED_HOST = (
    "the name of another host: tests/fast/services/fleet/test_hosts.py"
    "::test_a_fault_drains_a_host_and_its_repair_is_for_an_operator"
)
MOVED_NODE = (
    "a node that waits for people: tests/fast/services/fleet/test_fleet.py"
    "::test_an_operator_moves_a_node_through_debug_and_rma_and_its_history_says_who_and_why"
)
BY_THE_CLOCK = (
    "real Slurm: tests/e2e/test_submit_options.py"
    "::test_what_scrontab_has_runs_by_the_clock_with_the_users_environment"
)
SLOW_JOB = "real Slurm: tests/e2e/test_job_diagnosis.py::test_the_rank_that_the_others_wait_for_is_named"
HAS_KEY = "mkdir -m 700 ~/.ssh && ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519\n"

GPU_REPORT = (
    "tests/fast/monitoring/test_job_report.py::test_the_report_of_a_job_has_what_its_gpus_did_while_it_ran"
)

READERS: Mapping[str, Reader] = {
    "docs/guides/README.md": Reader(),
    "docs/guides/fleet.md": Reader(
        before=HAS_KEY,
        not_run={
            "neo fleet node get gpu-host-1": DRAINED_HOST,
            "neo fleet drain gpu-host-1": DRAINED_HOST,
            "neo fleet release gpu-host-1": DRAINED_HOST,
            "neo fleet node move": MOVED_NODE,
            "neo fleet node release gpu-host-1": MOVED_NODE,
            "sinfo": BROKEN_WORKER,
            "neo fleet maintenance create": WINDOW,
            "neo fleet maintenance delete": WINDOW,
            "neo fleet break-fix request": REPAIR,
        },
    ),
    "docs/guides/fleet-checks.md": Reader(
        not_run={
            "neo fleet checks": IDLE_WORKER,
            "neo fleet verdict": JUDGED,
            "neo fleet check": HOST_CHECK,
            "neo fleet agent": HOST_AGENT,
            "python -m neocloud.fleet.agent.bundle": HOST_ARCHIVE,
            "python3.11 agent.pyz": HOST_ARCHIVE,
            "neo fleet node events": WORKER_AGENT,
            '{"gpus": 8': HOST_CHECK,
        },
    ),
    "docs/guides/observability.md": Reader(
        not_run={
            "neo fleet top                 #": WATCHED,
            "neo image build": IMAGES,
            "neo up --metrics": COLLECTED,
            '[{"targets"': EXPORTER,
            "curl -G": QUERIED,
            "neo slurm job report": GPU_REPORT,
        },
    ),
    "docs/guides/slow-jobs.md": Reader(
        not_run={"neo slurm job diagnose": SLOW_JOB, '{"step": 11': EXAMPLE, "import json, os, time": EXAMPLE}
    ),
    "docs/guides/fleet-simulator.md": Reader(
        not_run={
            "neo fleet simulate --gpus 2048 --compare": COMPARED,
            "make compare-policy": COMPARED,
            "scripts/compare-policy": COMPARED,
        }
    ),
    "docs/guides/scorecard.md": Reader(
        not_run={"cmax audit": AUDITOR, "neo fleet scorecard --audit": AUDITOR}
    ),
    "docs/guides/emulator.md": Reader(
        not_run={
            "steps:": INTERNET,
            "pytest_plugins": EXAMPLE,
            "import pytest": EXAMPLE,
        },
    ),
    "docs/guides/getting-started.md": Reader(
        before=HAS_KEY,
        not_run={
            "git clone": INTERNET,
            "make demo": INTERNET,
            "make setup": INTERNET,
            "export PATH": "the tests' own path leads to it already",
            "neo slurm cluster check": CHECK,
            "cat > hello.sbatch": REAL_CLUSTER,
            "neo slurm job": REAL_CLUSTER,
            "neo slurm cluster ssh": REAL_CLUSTER,
            "scp -F": REAL_CLUSTER,
            "ssh -F": REAL_CLUSTER,
            "neo ssh lab": REAL_CLUSTER,
        },
        types={"[y/N]:": "y"},
    ),
    "docs/guides/machines.md": Reader(
        before=f"{HAS_KEY}neo storage bucket create disks\nhead -c 1M /dev/zero > rocky9.qcow2\n",
        not_run={"neo image build": IMAGES, "neo ssh": REAL_MACHINE},
    ),
    "docs/guides/object-storage.md": Reader(
        not_run={
            "neo config set object-blobs": OTHER_ENGINE,
            "neo up": OTHER_ENGINE,
            "neo config set object-metadata": POSTGRESQL,
            "neo storage mount": MOUNT,
            "neo storage unmount": MOUNT,
            "neo compute instance create reader": MACHINE_MOUNT,
            "neo ssh reader": MACHINE_MOUNT,
            "printf": MACHINE_MOUNT,
            "#!/bin/bash": STORAGE_JOB,
            "neo slurm storage": STORAGE_KEYS,
            "neo storage bucket create sets": FILESYSTEM_BUCKET,
        },
    ),
    "docs/guides/moving-data.md": Reader(
        not_run={
            "neo tune": REAL_DATASET,
            "neo model": REAL_DATASET,
            "neo storage cp -r": REAL_DATASET,
            "neo deploy": REAL_DATASET,
        },
    ),
    "docs/guides/container-registry.md": Reader(
        not_run={
            "neo config set registry-mirror": MIRRORS,
            "neo up": MIRRORS,
            "podman": IMAGE_CLIENTS,
            "skopeo": IMAGE_CLIENTS,
            "neo registry vulnerability-report": IMAGE_REPORT,
            "neo ai job": IMAGE_JOBS,
            "neo image push": PUSHED_IMAGES,
            "neo image build": IMAGES,
            "neo model push": PUSHED_MODELS,
            "neo model add": PUSHED_MODELS,
            "oras push": ORAS_MODELS,
            "oras pull": PUSHED_MODELS,
        }
    ),
    "docs/guides/maintenance.md": Reader(not_run={"neo down": MAINTAINED}),
    "docs/guides/gpus.md": Reader(
        before=HAS_KEY,
        not_run={"neo image import": IMPORTED, "scripts/on-a-gpu": ONE_GPU},
    ),
    "docs/guides/mpi.md": Reader(
        not_run={
            "mpicc": MPI,
            "srun": MPI,
            "mkdir -p /opt/modulefiles": MPI,
            "echo 'prepend_path": MPI,
            "module load": MPI,
        },
    ),
    "docs/guides/containers.md": Reader(not_run={"srun": CONTAINERS, "sbatch": CONTAINERS}),
    "docs/guides/several-users.md": Reader(
        before=f"{HAS_KEY}cp ~/.ssh/id_ed25519.pub ann.pub\nssh-keygen -q -t ed25519 -N '' -f laptop\n",
        not_run={
            "neo slurm cluster ssh team --user ann": USERS,
            "neo login ann.lee": PEOPLE,
            "neo user add-ssh-key": PEOPLE,
            "neo slurm storage": STORAGE_KEYS,
            "sbatch": SSH_BETWEEN_NODES,
            "squeue": SSH_BETWEEN_NODES,
            "ssh worker-1": SSH_BETWEEN_NODES,
        },
    ),
    "docs/guides/tenancy.md": Reader(
        before="neo up --home $NEOCLOUD_HOME\nopenssl genrsa -out key.pem 2048\n"
        "openssl rsa -in key.pem -pubout -out key.pub.pem\nunset NEOCLOUD_HOME\n",
        between={
            "neo login alice": "echo horse-battery-staple |"
            " neo user set-password alice@bank.example --password-stdin",
            "neo iam oidc-federation create": "neo config use default",
        },
        not_run={
            "neo login https": TEAMS_CLOUD,
            "neo user second-factor": "needs an authenticator app: tests/fast/services/iam/test_people.py",
            "neo login --oidc": "needs a browser: tests/fast/security/test_federation.py",
        },
        types={"Password:": "horse-battery-staple"},
    ),
    "docs/guides/inference.md": Reader(
        not_run={
            "neo model add all-minilm-l6-v2": MINILM,
            "neo deploy all-minilm-l6-v2": MINILM,
            "neo embed": MINILM,
            "neo deploy bank --weights": FEWER_BITS,
            "neo deploy bank --on-slurm": ON_A_WORKER,
            "neo model add bank ./bank-model --questions": QUESTIONS,
            "neo model verify": QUESTIONS,
            "neo inference feedback": GATEWAY,
            "curl": GATEWAY,
            "from openai": GATEWAY,
            "import": GATEWAY,
            "from langchain": GATEWAY,
            "neo inference release create": RELEASED,
            "neo inference release promote": RELEASED,
            "neo inference release roll-back": RELEASED,
        },
    ),
    "docs/guides/answer-from-documents.md": Reader(
        not_run={
            "neo model add all-minilm-l6-v2": MINILM,
            "neo deploy all-minilm-l6-v2": MINILM,
            "neo vector-store": DOCUMENTS,
            "from openai": DOCUMENTS,
        },
    ),
    "docs/guides/compare-providers.md": Reader(not_run={"from openai": GATEWAY}),
    "docs/guides/evaluate.md": Reader(
        not_run={
            "neo evaluate --base smollm2 --candidate bank --data": EVALUATION,
            "neo evaluate --base smollm2 --candidate bank --tasks": LM_EVAL,
            "neo evaluate --base bank --candidate": EVALUATION,
            "neo tune": GATED,
            "neo model override-gate": GATED,
            "scripts/install-client": INTERNET,
            "neo tco --set workers=4 --measure": "tests/long/inference/test_evaluation.py::"
            "test_what_a_conversation_costs_at_the_speed_it_is_served",
        }
    ),
    "docs/guides/chat.md": Reader(not_run={"neo chat bank --once": ASKED, "neo chat": CHAT}),
    "docs/guides/tuning.md": Reader(
        not_run={
            "neo tune": REAL_TUNING,
            "neo tuning job pause": PAUSED,
            "neo tuning job resume": PAUSED,
            "neo tuning job cancel": (
                "needs a job that runs: tests/fast/model_gateway/openai_files/test_fine_tuning.py"
            ),
            "neo tuning": REAL_TUNING,
            "neo model lineage": TRACED,
            "neo model list --trained-on": TRACED,
            "neo model rebuild": (
                "needs a job that has ended: "
                "tests/fast/cli/test_lineage.py::test_a_model_is_built_again_from_what_was_recorded"
            ),
            '{"messages"': "a line of data",
            "file =": GATEWAY,
        }
    ),
    "docs/guides/fine-tune.md": Reader(
        not_run={
            "export CONFIG": LARGER,
            "sbatch --nodes=4": LARGER,
            "neo model": SMOLLM2,
            "model=": SMOLLM2,
            "tar ": SMOLLM2,
            **{
                start: RECIPES
                for start in (
                    "neo slurm",
                    "ssh ",
                    "scp ",
                    "cd ",
                    "export DATA",
                    "prepare=",
                    "finetune=",
                    "evaluate=",
                    "squeue",
                    "jq ",
                    "python3 ",
                )
            },
        }
    ),
    "docs/guides/backup.md": Reader(
        stands_for={"/mnt/backups": "$HOME", "/root": "$HOME", "/srv/cloud": "$HOME/cloud"},
        not_run={
            "neo up": "tests/real/emulator/test_backup.py::test_a_cloud_goes_on_on_another_machine",
            "age --decrypt": "needs the program age; tests/fast/control_plane/backup/test_hostile.py"
            "::test_other_programs_read_the_archive",
        },
    ),
    "docs/guides/a-teams-cloud.md": Reader(
        not_run={
            "cat > first.sbatch": FAR_CLUSTER,
            "neo slurm": FAR_CLUSTER,
            "neo ssh": FAR_CLUSTER,
            "neo ": TEAMS_CLOUD,
            "scp -F lab.ssh": FAR_CLUSTER,
            "import ssl": LAPTOP,
        }
    ),
    "docs/guides/slurm-administration.md": Reader(
        not_run={
            "0 ": BY_THE_CLOCK,
            "sacctmgr": ADMINISTRATION,
            "sshare": ADMINISTRATION,
            "scontrol": ADMINISTRATION,
            "sbatch": ADMINISTRATION,
            "neo slurm cluster": CLUSTER_BACKUP,
            "tar ": CLUSTER_BACKUP,
            "id=": SLURM_REST,
            "curl": SLURM_REST,
        }
    ),
    "docs/guides/clients/json.md": Reader(),
    "docs/guides/clients/sdk.md": Reader(not_run={"neo client-config trust": TRUST}),
    "docs/guides/clients/terraform.md": Reader(
        not_run={"terraform plan": "needs the provider from the internet"}
    ),
    "docs/guides/clients/skypilot.md": Reader(
        not_run={
            "neo image build": IMAGES,
            "neo client-config trust": TRUST,
            "pip install": INTERNET,
            "sky ": SKYPILOT,
            "ssh dev": SKYPILOT,
        }
    ),
    "docs/guides/clients/dstack.md": Reader(
        not_run={
            "neo image build": IMAGES,
            "neo client-config trust": TRUST,
            "grpc_proxy=": DSTACK,
        }
    ),
    "docs/howto/style.md": Reader(),
    "docs/howto/add-a-service.md": Reader(not_run={'"""': HOWTO}),
    "README.md": Reader(
        before=HAS_KEY,
        not_run={
            " ": "a drawing",
            "make ": INTERNET,
            "neo image build": IMAGES,
            "neo compute instance ssh": REAL_MACHINE,
            "neo slurm job": REAL_CLUSTER,
            "neo slurm cluster ssh": REAL_CLUSTER,
            "neo deploy": REAL_MODEL,
            "neo chat": REAL_MODEL,
            "neo tune": REAL_TUNING,
        },
    ),
}
