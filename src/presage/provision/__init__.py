"""How much to give: right-sizing policies, an evaluator that replays telemetry, and patches.

Start at `rightsize.py`. Nothing here reads a file, a clock or a cluster.
"""
