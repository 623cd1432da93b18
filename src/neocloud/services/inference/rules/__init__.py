"""What is legal for models, deployments and budgets. Pure."""

from neocloud.services.inference.rules.deployment import DeploymentRules
from neocloud.services.inference.rules.model import ModelRules

__all__ = ["DeploymentRules", "ModelRules"]
