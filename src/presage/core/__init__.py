"""The scheduler: pure and synchronous. Standard library and NumPy; no I/O, no clock, no global
random."""
