"""What is legal for endpoints and jobs. Pure."""

from neocloud.services.ai.rules.workload import EndpointRules, JobRules

__all__ = ["EndpointRules", "JobRules"]
