"""Real worlds that run jobs: `local` (this machine) and `ray` (a Ray cluster), both on `node`
(what happens on one machine). Each passes `presage.testing.executors`."""
