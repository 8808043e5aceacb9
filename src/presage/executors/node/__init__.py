"""One machine: the guardian of a run and everything it needs, with the standard library alone.

Keep this file empty: guardians start in a moment.
"""
