"""The rules of models, deployments and budgets. Pure."""

from neocloud.services.inference.rules.budget import BudgetRules
from neocloud.services.inference.rules.deployment import CAPACITY, DeploymentRules
from neocloud.services.inference.rules.model import ModelRules

__all__ = ["CAPACITY", "BudgetRules", "DeploymentRules", "ModelRules"]
