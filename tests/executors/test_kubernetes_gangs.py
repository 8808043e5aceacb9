"""Gangs on Kubernetes start whole or not at all, whatever goes wrong around them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kubernetes_fire import Fire, under_fire
from tests.kubernetes_plane import Plane

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    "fire",
    [
        pytest.param(
            Fire(
                gangs=12,
                nodes=4,
                api_kills=2,
                pod_deletes=4,
                node_losses=1,
                watch_drops=4,
                lost_answers=0.05,
                restarts=1,
                runs_s=0.1,
            ),
            marks=pytest.mark.slow,
            id="short",
        ),
        pytest.param(Fire(), marks=pytest.mark.soak, id="whole"),
    ],
)
def test_gangs_under_fire(plane: Plane, tmp_path: Path, fire: Fire) -> None:
    result = under_fire(plane, tmp_path, fire, lambda line: None)
    assert result.breaches == []
    assert result.half == []
    assert result.left == []
    assert result.succeeded == fire.gangs
    assert result.done["kill the API server"] == fire.api_kills
