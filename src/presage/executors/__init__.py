"""Real worlds that run jobs: this machine (`local`) and Ray clusters (`ray`). Each passes
`presage.testing.executors`.

The guardian of a run imports from here with the standard library alone; keep this file empty.
"""
