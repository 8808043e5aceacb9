"""Phases of behaviour, found in telemetry without labels; recognised, followed and forecast."""

from presage.observe.phases.crbm import CRBM
from presage.observe.phases.forecast import PhaseForecast, PhaseForecaster
from presage.observe.phases.hiest import HiestModel
from presage.observe.phases.model import PhaseDrift, PhaseModel
from presage.observe.phases.statistics import PhaseStatistics
from presage.observe.phases.stepper import Stepper

__all__ = [
    "CRBM",
    "HiestModel",
    "PhaseDrift",
    "PhaseForecast",
    "PhaseForecaster",
    "PhaseModel",
    "PhaseStatistics",
    "Stepper",
]
