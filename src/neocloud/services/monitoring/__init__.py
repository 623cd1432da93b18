"""Monitoring: the history of metrics, of one project for its people and of all for operators."""

from neocloud.core.service import Service
from neocloud.services.monitoring.api import METHODS, ROUTES
from neocloud.services.monitoring.history import MetricsHistory, StoreOfHome
from neocloud.services.monitoring.public import MetricsReader, MetricsStore

SERVICE = Service(
    name="monitoring",
    methods=METHODS,
    http_routes=ROUTES,
    provides={
        MetricsStore: lambda dependencies: StoreOfHome(dependencies.settings.home),
        MetricsReader: lambda dependencies: dependencies.provided.get(MetricsHistory),
        MetricsHistory: lambda dependencies: MetricsHistory(dependencies.provided.get(MetricsStore)),
    },
)
