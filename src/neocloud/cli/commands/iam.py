"""`neo iam`: derived from the contract."""

from neocloud.cli.resources.commands import product_app

app = product_app(
    "iam",
    "Projects, service accounts, groups and their permissions.",
    "neo iam role list",
    "neo iam service-account create --name pipeline",
    "neo iam group-membership create --parent-id group-e00abc --member-id serviceaccount-e00abc",
    "neo iam access-permit create --parent-id group-e00abc --resource-id project-e00abc --role editor",
)
