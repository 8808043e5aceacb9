"""Presage foresees what deep-learning jobs will need, and runs the cluster on that foresight."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`presage.predict`, imported when it is first asked for."""
    if name == "predict":
        return import_module("presage.foresee.predict").predict
    raise AttributeError(f"module 'presage' has no attribute '{name}'")
