"""Environments on the simulator, in which policies learn: the same core and the same `Policy` port
as a live cluster, stopped whenever something is to be chosen.

`worlds` says which traces and clusters there are, `episode` runs one, `envs` are the Gymnasium
environments; `imitate`, `search` and `reinforce` train, `evaluate` compares. Needs the extra `gym`
(gymnasium, and Stable-Baselines3 to train with it), which is imported where it is used.
"""
