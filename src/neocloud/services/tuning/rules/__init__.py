"""What is legal for a job, which settings it gets, and whether it fits."""

from neocloud.services.tuning.rules.job import FineTuningJobRules

__all__ = ["FineTuningJobRules"]
