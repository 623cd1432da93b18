"""The rules of models, deployments and budgets. Pure."""

from neocloud.services.inference.rules.deployment import CAPACITY, BudgetRules, DeploymentRules
from neocloud.services.inference.rules.model import ModelRules

__all__ = ["CAPACITY", "BudgetRules", "DeploymentRules", "ModelRules"]
