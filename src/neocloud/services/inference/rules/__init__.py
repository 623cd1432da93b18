"""The rules of models, deployments, budgets and file buckets. Pure."""

from neocloud.services.inference.rules.deployment import CAPACITY, BudgetRules, DeploymentRules
from neocloud.services.inference.rules.file_bucket import FileBucketRules
from neocloud.services.inference.rules.model import ModelRules
from neocloud.services.inference.rules.release import ReleaseRules

__all__ = ["CAPACITY", "BudgetRules", "DeploymentRules", "FileBucketRules", "ModelRules", "ReleaseRules"]
