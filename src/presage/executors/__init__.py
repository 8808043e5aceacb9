"""Real worlds that run jobs: today this machine (`local`). Each passes
`presage.testing.executors`.

The guardian of a run imports from here with the standard library alone; keep this file empty.
"""
