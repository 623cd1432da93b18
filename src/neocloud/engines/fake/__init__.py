"""An engine that runs nothing, for tests and for trying the control plane anywhere."""

from neocloud.engines.fake.engine import FakeEngine
from neocloud.engines.fake.faults import Faults
from neocloud.engines.fake.world import FakePod, FakeWorld

__all__ = ["FakeEngine", "FakePod", "FakeWorld", "Faults"]
