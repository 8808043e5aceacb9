"""Presage foresees what deep-learning jobs will need, and runs the cluster on that foresight."""

__version__ = "0.1.0"
