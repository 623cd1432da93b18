"""What is legal for endpoints and jobs. Pure."""

from neocloud.services.ai.rules.container import FILE_REQUEST_BYTES
from neocloud.services.ai.rules.workload import CAPACITY, EndpointRules, JobRules

__all__ = ["CAPACITY", "FILE_REQUEST_BYTES", "EndpointRules", "JobRules"]
