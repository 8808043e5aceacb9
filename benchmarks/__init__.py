"""Measurements behind the figures in the docs; each file is a command."""
