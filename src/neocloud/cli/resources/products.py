"""Products and nouns of the command line: the texts that the contract does not contain, by service.

Verbs, flags and columns are derived from the contract. A test compares this table with the methods that the
server serves, so a served service without an entry fails it.
"""

from collections.abc import Mapping

from neocloud.cli.resources.noun import Noun, Parent, Product
from neocloud.cli.resources.storage_products import STORAGE_PRODUCTS

REFUSED_OF_WORKLOADS = (
    "spec.registry_credentials",
    "spec.auth_token",
    "spec.ssh_authorized_keys",
    "spec.pricing_model.spot_pricing_policy",
)
PRODUCTS: Mapping[str, Product] = {
    "iam": Product(
        "Projects, service accounts, groups and their permissions.",
        (
            "neo iam role list",
            "neo iam service-account create pipeline",
            "neo iam get-access-token",
            "neo iam group-membership create --parent-id group-e00abc --member-id serviceaccount-e00abc",
            "neo iam access-permit create --parent-id group-e00abc --resource-id project-e00abc --role admin",
        ),
        (
            # A caller has one tenant.
            Noun("nebius.iam.v1.ProfileService", "The signed-in account.", parent=Parent.NOTHING),
            Noun(
                "nebius.iam.v2.TenantService",
                "Tenants: a company or a team.",
                parent=Parent.NOTHING,
                without=("GetByName", "Update"),
            ),
            Noun(
                "nebius.iam.v2.ProjectService",
                "Projects: groups of resources in a tenant.",
                "risk",
                parent=Parent.TENANT,
            ),
            Noun(
                "nebius.iam.v1.ServiceAccountService",
                "Service accounts: accounts for programs.",
                "pipeline --description 'Nightly training'",
            ),
            Noun(
                "nebius.iam.v1.AuthPublicKeyService",
                "Keys with which service accounts sign in.",
                '--account-service-account-id serviceaccount-e00abc --data "$(cat key.pub.pem)"',
            ),  # Resources have ids; the other id of a key is for S3 clients.
            Noun(
                "nebius.iam.v2.AccessKeyService",
                "S3 access keys of service accounts.",
                "--account-service-account-id serviceaccount-e00abc --secret-delivery-mode EXPLICIT",
                without=("GetByAwsId", "DeleteByAwsId", "ActivateByAwsId", "DeactivateByAwsId"),
                columns=(
                    ("SERVICE ACCOUNT", "spec.account.service_account.id"),
                    ("USER", "spec.account.user_account.id"),
                    ("KEY", "status.aws_access_key_id"),
                ),
            ),  # Everybody on the machine can read a token on a command line; delete the key by its id.
            Noun(
                "nebius.iam.v1.StaticKeyService",
                "Long-lived tokens for clients that cannot renew tokens.",
                "pulls --account-service-account-id serviceaccount-e00abc --service CONTAINER_REGISTRY",
                without=("Find", "Revoke"),
            ),
            Noun(
                "nebius.iam.v1.TenantUserAccountService",
                "User accounts; see also neo user.",
                parent=Parent.TENANT,
            ),
            Noun(
                "nebius.iam.v1.TenantUserAccountWithAttributesService",
                "User accounts with names and e-mail addresses.",
                parent=Parent.TENANT,
            ),  # The cloud sends no mail.
            Noun(
                "nebius.iam.v1.InvitationService",
                "Invitations; `neo user invite` also issues the code.",
                "--email bob@example.com",
                parent=Parent.TENANT,
                without=("Resend",),
            ),
            Noun(
                "nebius.iam.v1.SessionManagementService",
                "All sessions of an account; see also neo session.",
                "--tenant-user-account-id tenantuseraccount-e00abc",
                parent=Parent.NOTHING,
            ),
            Noun(
                "nebius.iam.v1.FederatedCredentialsService",
                "External workloads that may act as a service account.",
                "ci --oidc-provider-issuer-url https://issuer.example --federated-subject-id"
                " repo:example/app --subject-id serviceaccount-e00abc",
            ),
            Noun(
                "neocloud.iam.v1.OidcFederationService",
                "OpenID providers through which people sign in.",
                "corp --issuer-url https://login.example --client-id neocloud",
                parent=Parent.TENANT,
            ),
            Noun("nebius.iam.v1.GroupService", "Groups of accounts.", "analysts", parent=Parent.TENANT),
            Noun(
                "nebius.iam.v1.GroupMembershipService",
                "Members of groups.",
                "--parent-id group-e00abc --member-id serviceaccount-e00abc",
                parent=Parent.GIVEN,
                parent_service="nebius.iam.v1.GroupService",
            ),
            Noun(
                "nebius.iam.v1.AccessPermitService",
                "Permissions of a group on a resource.",
                "--parent-id group-e00abc --resource-id project-e00abc --role editor",
                parent=Parent.GIVEN,
                parent_service="nebius.iam.v1.GroupService",
            ),
            Noun(
                "neocloud.iam.v1.RoleService", "Roles that an access permit can grant.", parent=Parent.NOTHING
            ),
        ),
    ),
    "vpc": Product(
        "Networks, subnets, addresses, routes and security groups.",
        (
            "neo vpc subnet list",
            "neo vpc network create lab",
            "neo vpc allocation list",
            "neo vpc security-rule list --parent-id vpcsecuritygroup-e00abc",
        ),
        (
            Noun(
                "nebius.vpc.v1.NetworkService",
                "Networks: resources in one network reach each other and nothing else.",
                "lab",
                shortcuts=(
                    ("spec.ipv4_private_pools.pools", "--private-pool-id"),
                    ("spec.ipv4_public_pools.pools", "--public-pool-id"),
                ),
            ),
            Noun(
                "nebius.vpc.v1.SubnetService",
                "Subnets: ranges of a network for machines.",
                "workers --network-id vpcnetwork-e00abc --cidr 10.128.200.0/24",
                shortcuts=(("spec.ipv4_private_pools.pools", "--cidr"),),
            ),
            Noun(
                "nebius.vpc.v1.PoolService",
                "Pools: address ranges for networks.",
                "office --version IPV4 --visibility PRIVATE --cidr 172.20.0.0/16",
                shortcuts=(("spec.cidrs", "--cidr"),),
            ),
            Noun(
                "nebius.vpc.v1.AllocationService",
                "Allocations: reserved addresses.",
                "login --ipv4-public-subnet-id vpcsubnet-e00abc",
                columns=(("ADDRESS", "status.details.allocated_cidr"),),
            ),
            Noun(
                "nebius.vpc.v1.RouteTableService",
                "Route tables of subnets.",
                "inspected --network-id vpcnetwork-e00abc",
            ),
            Noun(
                "nebius.vpc.v1.RouteService",
                "Routes of a route table.",
                "out --parent-id vpcroutetable-e00abc --destination-cidr 0.0.0.0/0"
                " --next-hop-default-egress-gateway",
                parent=Parent.GIVEN,
                parent_service="nebius.vpc.v1.RouteTableService",
            ),
            Noun(
                "nebius.vpc.v1.SecurityGroupService",
                "Security groups: firewall rules for machines.",
                "web --network-id vpcnetwork-e00abc",
            ),
            Noun(
                "nebius.vpc.v1.SecurityRuleService",
                "Rules of a security group.",
                "https --parent-id vpcsecuritygroup-e00abc --access ALLOW --protocol TCP"
                " --ingress-source-cidrs 0.0.0.0/0 --ingress-destination-ports 443",
                parent=Parent.GIVEN,
                parent_service="nebius.vpc.v1.SecurityGroupService",
            ),
        ),
    ),
    "compute": Product(
        "Virtual machines, their disks and images, and shared file systems.",
        (
            "neo compute instance create web --public-ip",
            "neo compute instance ssh web",
            "neo compute disk create data --size-gibibytes 20 --type NETWORK_SSD",
            "neo compute platform list",
        ),
        (
            Noun(
                "nebius.compute.v1.PlatformService", "Platforms and presets: the available machine shapes."
            ),  # Not served.
            Noun(
                "nebius.compute.v1.InstanceService",
                "Virtual machines.",
                "web --file machine.yaml",
                columns=(
                    ("PRESET", "spec.resources.preset"),
                    ("PRIVATE IP", "status.network_interfaces.ip_address.address"),
                    ("PUBLIC IP", "status.network_interfaces.public_ip_address.address"),
                ),
                without=("ListInstancesByNVLInstanceGroup",),
            ),
            Noun(
                "neocloud.compute.v1.MachineService",
                "The running machine of an instance.",
                "--instance-id computeinstance-e00abc",
                parent=Parent.NOTHING,
            ),
            Noun(
                "nebius.compute.v1.DiskService",
                "Disks; one machine at a time can write to each.",
                "data --size-gibibytes 100 --type NETWORK_SSD",
            ),
            Noun(
                "nebius.compute.v1.DiskSnapshotService",
                "Snapshots of disks.",
                "before-upgrade --source-disk-id computedisk-e00abc",
            ),
            Noun(
                "nebius.compute.v1.ImageService",
                "Images that disks are created from.",
                "golden --image-family golden --source-disk-id computedisk-e00abc",
            ),
            Noun(
                "neocloud.compute.v1.DiskExportService",
                "Disks written to buckets as qcow2; see also neo compute image export.",
                "golden --source-image-id computeimage-e00abc --bucket-name disks --object-name golden.qcow2",
                columns=(
                    ("BUCKET", "spec.destination_storage.bucket_name"),
                    ("OBJECT", "spec.destination_storage.object_name"),
                ),
                shortcuts=(
                    ("spec.destination_storage.bucket_name", "--bucket-name"),
                    ("spec.destination_storage.object_name", "--object-name"),
                ),
            ),
            Noun(
                "nebius.compute.v1.GpuClusterService",
                "Groups of machines that share an InfiniBand fabric.",
                "pretraining --infiniband-fabric fabric-2",
            ),
            Noun(
                "nebius.compute.v1.MaintenanceService",
                "Planned maintenance of machines.",
                "--instance-id computeinstance-e00abc",
            ),
            Noun(
                "nebius.compute.v1.FilesystemService",
                "Shared file systems.",
                "data --size-gibibytes 10 --type NETWORK_SSD",
            ),
        ),
    ),
    "inference": Product(
        "Models, the deployments that serve them, and token budgets.",
        (
            "neo inference model list",
            "neo inference deployment update inferencedeployment-e00abc --max-adapters 4",
            "neo inference budget create monthly --monthly-limit 250.00",
            "neo inference feedback list --rating down",
        ),
        (
            Noun(
                "neocloud.inference.v1.ModelService",
                "Models and adapters that can be served; see also neo model.",
                "assistant --source-folder /srv/models/assistant",
                shortcuts=(("spec.source.folder", "--source-folder"),),
            ),
            Noun(
                "neocloud.inference.v1.DeploymentService",
                "Models being served; see also neo deploy and neo deployment.",
                "assistant --model-id inferencemodel-e00abc --platform cpu-local --preset 2vcpu-4gb",
            ),
            Noun(
                "neocloud.inference.v1.BudgetService",
                "Monthly token budgets of projects. Models without a price are refused while there is one.",
                "monthly --monthly-limit 250.00",
            ),
            Noun(
                "neocloud.inference.v1.ReleaseService",
                "Releases of a model under another one's name, for a share of its requests first.",
                "v2 --model-id inferencemodel-e00abc --candidate-model-id inferencemodel-e00def"
                " --share-percent 10",
                columns=(
                    ("SHARE", "spec.share_percent"),
                    ("REQUESTS", "status.requests"),
                    ("FAILED", "status.failed"),
                    ("MESSAGE", "status.message"),
                ),
            ),
            Noun(
                "neocloud.inference.v1.FileBucketService",
                "The bucket in which the gateway keeps files of a project.",
                "files --bucket team-data",
                columns=(("BUCKET", "spec.bucket"),),
            ),
        ),
    ),
    "operator": Product(
        "Maintenance of the cloud's host, for its operators.",
        (
            "neo operator maintenance create firmware --start-at 2026-12-01T22:00:00Z"
            " --reason 'New firmware'",
            "neo operator maintenance list",
            "neo operator maintenance delete firmware",
        ),
        (
            Noun(
                "neocloud.operator.v1.MaintenanceService",
                "Maintenance of the host or of one machine; deleting it ends it.",
                "firmware --start-at 2026-12-01T22:00:00Z --reason 'New firmware'",
                parent=Parent.TENANT,
                columns=(("START", "spec.start_at"), ("RUNNING", "status.running_instance_ids")),
            ),
        ),
    ),
    "tuning": Product(
        "Fine-tuning jobs. `neo tune` does everything from a data file to a served model.",
        (
            "neo tuning job list",
            "neo tuning job get JOB",
            "neo tuning job events JOB --follow",
            "neo tuning job pause JOB",
            "neo tuning file list",
        ),
        (
            Noun(
                "neocloud.tuning.v1.FineTuningJobService",
                "Fine-tuning jobs; see also neo tune.",
                "--model-id inferencemodel-e00abc --training-file file-1a2b --platform cpu-local"
                " --preset 2vcpu-8gb",
                short_name="job",
                also_known_as=("status.fine_tuned_model", "its resulting model"),
                columns=(
                    ("STEP", "status.step"),
                    ("OF", "status.total_steps"),
                    ("NEW MODEL", "status.fine_tuned_model"),
                ),
            ),
        ),
    ),
    "ai": Product(
        "Container images run as endpoints, until they are stopped, and as jobs, until they end.",
        (
            "neo ai endpoint list",
            "neo ai endpoint create web --image HOST/REGISTRY/web:v1 --port 8000",
            "neo ai job list",
            "neo ai job logs nightly --follow",
        ),
        (
            Noun(
                "nebius.ai.v1.EndpointService",
                "Container images that run until they are stopped.",
                "web --image localhost/neocloud/jail:1a2b --port 8000"
                " --container-command 'python3 -m http.server 8000'",
                shortcuts=(("spec.ports", "--port"),),
                refused=REFUSED_OF_WORKLOADS,
            ),
            Noun(
                "nebius.ai.v1.JobService",
                "Container images that run until they end.",
                "nightly --image localhost/neocloud/jail:1a2b --preset 2vcpu-4gb"
                " --container-command 'python3 train.py' --restart-attempts 2",
                shortcuts=(("spec.ports", "--port"),),
                refused=REFUSED_OF_WORKLOADS,
            ),
        ),
    ),
    **STORAGE_PRODUCTS,
}
