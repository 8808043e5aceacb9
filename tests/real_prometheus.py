"""A real Prometheus on a free port, with samples of the past in it."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from presage.model.errors import TelemetryError
from presage.telemetry.prometheus import Prometheus
from tests.waiting import PATIENCE_S, eventually

__all__ = ["prometheus_with"]


@contextmanager
def prometheus_with(
    samples: Iterable[str], metric: str, folder: Path, program: Callable[..., str]
) -> Iterator[Prometheus]:
    """One that was fed OpenMetrics lines, and answers with `metric`, which is among them."""
    (folder / "samples").write_text("".join(samples))
    (folder / "prometheus.yml").write_text("{}")
    words = ["tsdb", "create-blocks-from", "openmetrics", str(folder / "samples")]
    subprocess.run([program("promtool"), *words, str(folder / "data")], check=True, stdout=-3)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        found = Prometheus(f"http://127.0.0.1:{port}/", timeout_s=PATIENCE_S)

        def there() -> bool:
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            with suppress(TelemetryError):
                return bool(found.range(metric, time.time() - 300, time.time(), 60))
            return False

        eventually(there)
        yield found
    finally:
        process.kill()
        process.wait()
