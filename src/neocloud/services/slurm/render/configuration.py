"""Slurm's configuration files, and every object of a cluster except its pods: network, keys, volumes.

Only the controller and the accounting daemon read the files from disk. Workers and login nodes fetch the
controller's copy ("configless"). docs/rfd/0002 and the comments below explain each setting; the rest are
Slurm's defaults.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from neocloud.engines.manifest import ConfigMap, Namespace, NetworkPolicy, Secret, Service, VolumeClaim
from neocloud.services.slurm.render.topology import absent_node_count, absent_nodes_conf, topology_conf
from neocloud.services.slurm.render.view import (
    ACCOUNTING_POD,
    CLUSTER_LABEL,
    DEFAULT_PARTITION,
    MAX_NODES,
    ClusterView,
    NodeSetView,
)

CONFIGURATION = "slurm-configuration"
LOGIN_KEYS = "login-keys"
SLURM_KEY = "slurm-key"
JWT_KEY = "jwt-key"
ACCOUNTING_SECRET = "accounting"
SSH_HOST_KEY = "ssh-host-key"
WORKER_HOST_KEY = "worker-host-key"
SSH_HOST_KEY_FILE = "ssh_host_ed25519_key"
LOGIN_NODES = "login-nodes"
SSH_TO_WORKERS = "ssh-to-workers"
STORAGE = "storage"
SSH_CLIENT_FOLDER = "/run/neocloud/ssh"
"""The folder in which jobs and login shells have the files of SSH_TO_WORKERS."""
CONTROLLER_STATE = "controller-state"
ACCOUNTING_DATA = "accounting-data"
NODES_SERVICE = "nodes"

CONTROLLER_STATE_GIB = 1
ACCOUNTING_DATA_GIB = 4

TAKEOVER_SECONDS = 12
"""The second controller takes over when the first has not written its heartbeat for longer, which it does
every quarter of this time. The image's `guard-controller` has ended a first one that hangs before."""

AUTHENTICATION = """\
AuthType=auth/slurm
AuthInfo=use_client_ids,cred_expire=15
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key=/etc/slurm/jwt.key
"""

# cred_expire, SlurmdTimeout, ReturnToService: a lost node's job runs elsewhere after seconds, and the node
# is used again as soon as it is back.
# sched_interval: a job that waits for a time, not for an event, starts then and not up to a minute later.
# bf_interval, bf_hetjob_immediate: heterogeneous jobs, started by backfill only, wait a second.
# bf_max_time: its default is bf_interval, in which a long queue could not be read.
# nohold_on_prolog_fail: a job that a node refuses to start is tried again, at most five times, and not held.
# PriorityWeight*: QoS before fair share before age. A day of waiting adds a seventh of PriorityWeightAge.
# PriorityCalcPeriod: in minutes; how soon usage counts for fair share.
# preempt/qos: no job is preempted until an administrator gives a QoS the right to (sacctmgr, Preempt=).
# MpiDefault: without it, `srun` of an MPI program starts programs that know nothing of each other.
# PropagateResourceLimitsExcept: jobs have the limits of nodes, not those of the shell that submits them.
# proctrack/linuxproc and OverMemoryKill: work in any container, whatever cgroups the host has.
# config_overrides: a worker is as large as its preset says, not as the machine it happens to run on.
SLURM_CONF = """\
ClusterName={name}
{controllers}SlurmUser=slurm
{authentication}CredType=cred/slurm
PluginDir=/opt/slurm/plugins
SlurmctldParameters=enable_configless{elastic_parameters}
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid

ReturnToService=2
SlurmdTimeout=20
MessageTimeout=10
BatchStartTimeout=15
TCPTimeout=3
KillWait=5
JobRequeue=1
SchedulerParameters=sched_interval=5,bf_interval=1,bf_max_time=30,bf_hetjob_immediate,nohold_on_prolog_fail
MpiDefault=pmix

ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherParams=OverMemoryKill
JobAcctGatherFrequency=2
SlurmdParameters=config_overrides
ScronParameters=enable

SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU={default_memory}
GresTypes=gpu
AccountingStorageTRES=gres/gpu

AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={accounting}
AccountingStorageEnforce=associations,limits,qos
PriorityType=priority/multifactor
PriorityWeightQOS=100000
PriorityWeightFairshare=10000
PriorityWeightPartition=1000
PriorityWeightAge=1000
PriorityCalcPeriod=1
PreemptType=preempt/qos
PreemptMode=REQUEUE

PropagateResourceLimitsExcept=MEMLOCK,NOFILE
Prolog=/usr/local/lib/neocloud/bind-jail
Epilog=/usr/local/lib/neocloud/end-job
HealthCheckProgram=/usr/local/lib/neocloud/check-node
HealthCheckInterval=30
HealthCheckNodeState=ANY

MaxNodeCount={max_nodes}
PartitionName={partition} Nodes={all_nodes} Default=YES{gpu_defaults}
"""

# SuspendProgram, ResumeProgram: nothing to do for Slurm; the control plane sees the states of the nodes.
# SuspendTime is that of each elastic partition. SuspendTimeout: in it, the control plane removes the worker.
# ResumeTimeout: then a node that did not start is down, and its job waits again.
# power_save_interval: in seconds; how often Slurm looks for idle nodes. It looks at once for waiting jobs.
ELASTIC_PARAMETERS = ",idle_on_node_suspend,power_save_interval=2"
ELASTIC_CONF = """\
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTimeout=10
ResumeTimeout=120
"""

SLURMDBD_CONF = """\
{authentication}DbdHost={accounting}
SlurmUser=slurm
PidFile=/run/slurmdbd/slurmdbd.pid
PluginDir=/opt/slurm/plugins
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm
"""

DATABASE_INIT_SQL = """\
CREATE DATABASE IF NOT EXISTS slurm;
CREATE USER IF NOT EXISTS slurm@'127.0.0.1';
ALTER USER slurm@'127.0.0.1' IDENTIFIED BY '{password}';
GRANT ALL ON slurm.* TO slurm@'127.0.0.1';
"""


def slurm_conf(view: ClusterView) -> str:
    text = SLURM_CONF.format(
        name=view.name,
        controllers=controllers(view),
        accounting=ACCOUNTING_POD,
        authentication=AUTHENTICATION,
        default_memory=default_memory_per_cpu(view.node_sets),
        max_nodes=MAX_NODES + absent_node_count(view),
        partition=DEFAULT_PARTITION,
        # "ALL" has the absent nodes, too.
        all_nodes=",".join(each.name for each in view.node_sets) if view.has_blocks else "ALL",
        gpu_defaults=gpu_defaults(view.node_sets),
        elastic_parameters=ELASTIC_PARAMETERS if view.is_elastic else "",
    )
    if view.topology and view.has_blocks:
        text += "TopologyPlugin=topology/block\n" + absent_nodes_conf(view)
    elif view.topology:
        text += "TopologyPlugin=topology/tree\n"
    if view.is_elastic:
        text += ELASTIC_CONF + _always_on(view.node_sets)
    if view.first_job:  # Slurm never gives a lower one, and continues from the highest that it gave
        text += f"FirstJobId={view.first_job}\n"
    return text + "".join(_partition_of(node_set, view.has_blocks) for node_set in view.node_sets)


def controllers(view: ClusterView) -> str:
    """Return the lines that name the controllers; of two, how long the second waits before it takes over."""
    names = view.controller_names()
    lines = "".join(f"SlurmctldHost={name}\n" for name in names)
    return lines if len(names) == 1 else f"{lines}SlurmctldTimeout={TAKEOVER_SECONDS}\n"


def default_memory_per_cpu(node_sets: tuple[NodeSetView, ...]) -> int:
    """Return the memory per CPU of jobs that request none: the share of a CPU on the leanest node, in MiB."""
    shares = [node_set.memory_mib // node_set.cpus for node_set in node_sets]
    return min(shares, default=1024)


def gpu_defaults(node_sets: Sequence[NodeSetView]) -> str:
    """Return options of a partition: the CPUs and memory of jobs that name GPUs only, for each GPU.

    They are the least share of a GPU, so that such jobs can use all GPUs of every node.
    """
    with_gpus = [each for each in node_sets if each.gpus]
    if not with_gpus:
        return ""
    cpus = min(max(each.cpus // each.gpus, 1) for each in with_gpus)
    memory = min(each.memory_mib // each.gpus for each in with_gpus)
    return f" DefCpuPerGPU={cpus} DefMemPerGPU={memory}"


def _partition_of(node_set: NodeSetView, has_blocks: bool) -> str:
    nodes = f"NodeSet={node_set.name} Feature={node_set.name}\n"
    if node_set.name == DEFAULT_PARTITION:
        return nodes if has_blocks else ""
    idle = "" if node_set.idle_seconds is None else f" SuspendTime={node_set.idle_seconds}"
    return f"{nodes}PartitionName={node_set.name} Nodes={node_set.name}{gpu_defaults([node_set])}{idle}\n"


def _always_on(node_sets: Sequence[NodeSetView]) -> str:
    names = [f"{each.name}-[0-{each.min_count - 1}]" for each in node_sets if each.min_count]
    return f"SuspendExcNodes={','.join(names)}\n" if names else ""


def gres_conf(view: ClusterView) -> str:
    """Return gres.conf. Its devices are slots, which a worker's entrypoint fills with the GPUs it was given.

    It names all nodes that a set could ever have, so that a change of a count does not change the file.
    """
    return "".join(
        f"NodeName={node_set.name}-[0-{MAX_NODES - 1}] Name=gpu"
        f"{f' Type={node_set.gpu_type}' if node_set.gpu_type else ''} File={_gpu_slots(node_set.gpus)}\n"
        for node_set in view.node_sets
        if node_set.gpus
    )


def _gpu_slots(gpus: int) -> str:
    return "/dev/gpu0" if gpus == 1 else f"/dev/gpu[0-{gpus - 1}]"


def node_conf(node_set: NodeSetView, *features: str) -> str:
    """Return the description of a worker when it registers (`slurmd -Z --conf`)."""
    kind = f"gpu:{node_set.gpu_type}" if node_set.gpu_type else "gpu"
    gres = f" Gres={kind}:{node_set.gpus}" if node_set.gpus else ""
    names = ",".join((node_set.name, *features))
    return f"CPUs={node_set.cpus} RealMemory={node_set.memory_mib}{gres} Feature={names}"


def configuration_files(view: ClusterView) -> dict[str, str]:
    files = {
        "slurm.conf": slurm_conf(view),
        "gres.conf": gres_conf(view),
        "cgroup.conf": "CgroupPlugin=disabled\n",
        "plugstack.conf": "required /opt/slurm/plugins/spank_jail.so\n",
    }
    return {**files, "topology.conf": topology_conf(view)} if view.topology else files


def accounting_files(view: ClusterView) -> dict[str, str]:
    """Return the files with the database password, for a Secret."""
    password = view.secrets.database_password
    return {
        "slurmdbd.conf": SLURMDBD_CONF.format(
            authentication=AUTHENTICATION, accounting=ACCOUNTING_POD, password=password
        ),
        "init.sql": DATABASE_INIT_SQL.format(password=password),
    }


def configuration_version(view: ClusterView, nodes: Iterable[str] = ()) -> str:
    """Return a hash of the configuration files; with a topology also of the names of the nodes in Slurm,
    which have places only when it knew them as it read the files."""
    files = configuration_files(view)
    text = json.dumps([files, sorted(nodes)] if view.topology else files, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def namespace(name: str, cluster_name: str) -> Namespace:
    return Namespace(name=name, labels={CLUSTER_LABEL: cluster_name})


def network_policy(view: ClusterView) -> NetworkPolicy:
    """Let nodes of a cluster reach each other and object storage, and keep other namespaces out."""
    return NetworkPolicy(
        name="same-namespace-only",
        namespace=view.namespace,
        labels=view.labels,
        platform_services=view.platform_services,
    )


def nodes_service(view: ClusterView) -> Service:
    """Return a headless service: it gives pods their names in engines that resolve them through Services."""
    return Service(
        name=NODES_SERVICE,
        namespace=view.namespace,
        labels=view.labels,
        selector={CLUSTER_LABEL: view.name},
        is_headless=True,
    )


def ssh_client_files(view: ClusterView) -> dict[str, str]:
    """Return the files for ssh from jobs and login shells to workers: by node name, with a key that is made
    at the first use and the workers' host key."""
    names = ",".join(f"{node_set.name}-*" for node_set in view.node_sets)
    config = (
        f"Match host {names},!*.* exec \"/opt/slurm/bin/make-ssh-key '%d'\"\n"
        "  IdentityFile ~/.ssh/neocloud/id_ed25519\n"
        f"  HostKeyAlias {view.namespace}\n"
        f"  GlobalKnownHostsFile {SSH_CLIENT_FOLDER}/known_hosts\n"
        "  StrictHostKeyChecking yes\n"
    )
    return {"config": config, "known_hosts": f"{view.namespace} {view.worker_host_public_key}\n"}


def config_maps(view: ClusterView) -> list[ConfigMap]:
    keys = {"root": view.authorized_keys, **view.user_keys}
    files = {
        CONFIGURATION: configuration_files(view),
        LOGIN_KEYS: {user: "".join(f"{key.strip()}\n" for key in lines) for user, lines in keys.items()},
        SSH_TO_WORKERS: ssh_client_files(view),
    }
    if view.storage_authority:
        files[STORAGE] = {"ca.pem": view.storage_authority}
    if view.has_balancer:
        files[LOGIN_NODES] = {"drained": "".join(f"{name}\n" for name in view.drained_login_nodes)}
    return [
        ConfigMap(name=name, namespace=view.namespace, labels=view.labels, data=data)
        for name, data in files.items()
    ]


def secrets(view: ClusterView) -> list[Secret]:
    files = {
        SLURM_KEY: {"slurm.key": view.secrets.slurm_key},
        JWT_KEY: {"jwt.key": view.secrets.jwt_key},
        SSH_HOST_KEY: {SSH_HOST_KEY_FILE: view.secrets.ssh_host_key.encode()},
        WORKER_HOST_KEY: {SSH_HOST_KEY_FILE: view.secrets.worker_host_key.encode()},
        ACCOUNTING_SECRET: {name: text.encode() for name, text in accounting_files(view).items()},
    }
    return [
        Secret(name=name, namespace=view.namespace, labels=view.labels, contents=contents)
        for name, contents in files.items()
    ]


def volume_claims(view: ClusterView) -> list[VolumeClaim]:
    """Return the claims of the daemons. The shared root is a compute Filesystem with a claim of its own."""
    sizes_gib = {CONTROLLER_STATE: CONTROLLER_STATE_GIB, ACCOUNTING_DATA: ACCOUNTING_DATA_GIB}
    claims = [
        VolumeClaim(name=name, namespace=view.namespace, labels=view.labels, storage=f"{gib}Gi")
        for name, gib in sizes_gib.items()
    ]
    if view.controller_count > 1:
        claims[0] = replace(claims[0], access_modes=("ReadWriteMany",))
    return claims
