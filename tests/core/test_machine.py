"""Random clusters, jobs, failures, drains and policies: 100 runs here, 2,000 in `make soak`."""

from __future__ import annotations

import pytest
from hypothesis import settings

from presage.testing.machine import ClusterMachine

pytestmark = pytest.mark.slow

TestCluster = ClusterMachine.TestCase
TestCluster.settings = settings(stateful_step_count=50)
