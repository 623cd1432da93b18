"""Products whose nouns are stored data, or say what is billed and where that is written."""

from collections.abc import Mapping

from neocloud.cli.resources.noun import Noun, Parent, Product

STORAGE_PRODUCTS: Mapping[str, Product] = {
    "storage": Product(
        "Buckets for objects, which S3 clients read and write, and transfers and lists of objects.",
        (
            "neo storage bucket create data-sets",
            "neo storage bucket list",
            "neo storage cp train.jsonl s3://data-sets/train/",
        ),
        (
            Noun(
                "nebius.storage.v1.BucketService",
                "Buckets: named stores of objects, with versions, rules and a policy.",
                "data-sets --versioning-policy ENABLED --max-size-bytes 1099511627776",
                without=("ListWithFilter",),
            ),
            Noun(
                "nebius.storage.v1.TransferService",
                "Transfers: copy objects from a bucket here or at another S3 endpoint, once or repeatedly.",
                "move --file transfer.yaml",
            ),
            Noun(
                "nebius.storage.v1.InventoryService",
                "Inventories: lists of the objects of a bucket, written into a bucket every day or week.",
                "all --bucket data-sets --enabled --destination-bucket-id reports"
                " --destination-prefix inventories --output-format CSV_GZIP --schedule DAILY",
                parent=Parent.GIVEN,
                parent_service="nebius.storage.v1.BucketService",
            ),
        ),
    ),
    "registry": Product(
        "Registries of container images, which docker, podman and skopeo push to and pull from.",
        (
            "neo registry login",
            "neo registry registry create team",
            "neo registry artifact list --parent-id team",
        ),
        (
            Noun(
                "nebius.registry.v1.RegistryService",
                "Registries of container images.",
                "team --description 'Images of the team'",
            ),
            Noun(
                "nebius.registry.v1.ArtifactService",
                "Images in registries.",
                parent=Parent.GIVEN,
                parent_service="nebius.registry.v1.RegistryService",
                columns=(
                    ("NAME", "name"),
                    ("TAGS", "tags"),
                    ("BYTES", "size"),
                    ("DIGEST", "digest"),
                    ("ID", "id"),
                ),
            ),
            Noun(
                "neocloud.registry.v1.VulnerabilityReportService",
                "Known vulnerabilities of images that are based on Debian, by the ids of the images.",
                "ID",
                parent=Parent.NOTHING,
            ),
        ),
    ),
    "billing": Product(
        "Usage and cost.",
        (),
        (
            Noun(
                "nebius.billing.v1.PricingPolicyService",
                "Price limits of preemptible machines.",
                "cheap --platform gpu-h100-sxm --max-price 1.50",
                shortcuts=(
                    ("spec.compute_instance_spec.v1.platform", "--platform"),
                    ("spec.pricing.max_price_v1.max_price", "--max-price"),
                ),
            ),
        ),
    ),
    "export": Product(
        "Audit log and bills in buckets, which the cloud writes on a schedule.",
        (
            "neo export rule list",
            "neo export rule create bills --content FOCUS_BILL --schedule DAILY --destination s3://bank-logs/bills",
        ),
        (
            Noun(
                "neocloud.export.v1.ExportRuleService",
                "Export rules: what is written to a bucket every hour or day.",
                "audit --content AUDIT_LOG --source-id tenant-e00abc --schedule DAILY"
                " --destination s3://bank-logs/audit",
                short_name="rule",
                columns=(
                    ("CONTENT", "spec.content"),
                    ("SOURCE", "spec.source_id"),
                    ("WRITTEN UNTIL", "status.written_until"),
                ),
            ),
        ),
    ),
}
