"""Collectors, the one place of `observe` that reads a clock: a sampler of process trees and GPUs,
the profiler of commands, and the store of profiles."""
