"""How the resources of a distributed training pulse: `sampler` measures, `labels` says it in
twelve numbers, `counters` knows memory. Nothing here foresees."""

from presage.telemetry.bursts.labels import METRICS, RESOURCES, TARGETS, Bursts, Pattern, label
from presage.telemetry.bursts.sampler import BurstSampler, TaskBursts, bursts_of

__all__ = [
    "METRICS",
    "RESOURCES",
    "TARGETS",
    "BurstSampler",
    "Bursts",
    "Pattern",
    "TaskBursts",
    "bursts_of",
    "label",
]
