"""Trouble of jobs, workers, nodes and GPUs, seen in telemetry while they run.

Windows of telemetry and what is known of the runs go in, findings come out: each with a subject, a
kind, a probability, evidence to look at and what to do. Pure: time is an argument, nothing is
read, nothing is decided, and little data is answered with silence.
"""

from presage.observe.health.trouble.findings import (
    PRECISION,
    Evidence,
    Subject,
    SubjectKind,
    Trouble,
    TroubleKind,
)
from presage.observe.health.trouble.runs import LiveRun, WorkerPlace
from presage.observe.health.trouble.watch import USUAL_RULES, TroubleRules, TroubleWatch

__all__ = [
    "PRECISION",
    "USUAL_RULES",
    "Evidence",
    "LiveRun",
    "Subject",
    "SubjectKind",
    "Trouble",
    "TroubleKind",
    "TroubleRules",
    "TroubleWatch",
    "WorkerPlace",
]
