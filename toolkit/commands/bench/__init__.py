"""`toolkit bench …`: each benchmark prints tables and writes every number as JSON."""

from toolkit.commands.bench import devices, fleets
from toolkit.commands.bench.reporting import bench

__all__ = ("bench", "devices", "fleets")
