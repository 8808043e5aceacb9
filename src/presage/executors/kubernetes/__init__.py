"""A Kubernetes cluster: `api` speaks to it, `reflect` keeps local copies of what it holds, and the
executor `kubernetes` runs jobs there."""
