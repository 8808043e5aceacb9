"""Shares of a GPU, enforced: who may launch when, and who may hold how much memory.

`turns` decides, without a clock; `daemon` carries that out on one node; a C library (`native/`) is
in the processes. What a share is worth is in files (`terms`): a daemon that dies loses nothing.
"""
