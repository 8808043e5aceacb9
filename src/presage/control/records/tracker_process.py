"""The process that writes metrics to MLflow or TensorBoard, as its standard input says.

A process of its own, since these libraries take seconds to import and may wait for a server that
does not answer: neither may hold up those who decide. Each line is one JSON object: `begin`, `log`
or `end` of a job. It answers with the run of MLflow, and with what went wrong.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from presage import beneath

__all__ = ["main"]

_ENDED = {"COMPLETED": "FINISHED", "CANCELLED": "KILLED"}
_MOST_PARAM = 500


class _MetricSink(Protocol):
    def log(self, at: float, step: int, metrics: dict[str, float]) -> None: ...

    def end(self, at: float, status: str, reason: str) -> None: ...


class _MlflowSink:
    """A run of an MLflow tracking server, or of a store of files or a database."""

    def __init__(self, order: dict[str, Any]) -> None:
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._client = MlflowClient(order["mlflow"])
        if order.get("run"):
            self.run = str(order["run"])
            return
        name = order["experiment"]
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        tags = {"presage.job": order["job"], "mlflow.user": order["owner"]}
        made = self._client.create_run(number, run_name=order["job"], tags=tags)
        self.run = made.info.run_id
        params = [Param(key, value[:_MOST_PARAM]) for key, value in order["params"].items()]
        labels = [RunTag(f"presage.{key}", text) for key, text in order["tags"].items()]
        self._client.log_batch(self.run, params=params[:100], tags=labels)

    def log(self, at: float, step: int, metrics: dict[str, float]) -> None:
        when = int(at * 1000)
        batch = [self._metric(key, value, when, step) for key, value in metrics.items()]
        self._client.log_batch(self.run, metrics=batch)

    def end(self, at: float, status: str, reason: str) -> None:
        self._client.set_tag(self.run, "presage.status", status)
        self._client.set_tag(self.run, "presage.reason", reason[:_MOST_PARAM])
        self._client.set_terminated(self.run, _ENDED.get(status, "FAILED"), int(at * 1000))


class _TensorboardSink:
    """Event files in a directory, in which no link is followed."""

    def __init__(self, order: dict[str, Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        root = Path(order["tensorboard_root"])
        root.mkdir(parents=True, exist_ok=True)
        names = beneath.parts_of(order["tensorboard"])
        with beneath.directory(root, names, make=True) as home:
            self._home = os.dup(home)
        self._writer = EventFileWriter(f"/proc/self/fd/{self._home}")
        start = hparams_pb({**order["params"], **order["tags"]}, trial_id=order["job"])
        self._writer.add_event(Event(wall_time=time.time(), summary=start))
        self._writer.flush()

    def log(self, at: float, step: int, metrics: dict[str, float]) -> None:
        values = [self._summary.Value(tag=k, simple_value=v) for k, v in metrics.items()]
        summary = self._summary(value=values)
        self._writer.add_event(self._event(wall_time=at, step=step, summary=summary))
        self._writer.flush()

    def end(self, at: float, status: str, reason: str) -> None:
        self._writer.add_event(self._event(wall_time=at, summary=self._ended(at, status)))
        self._writer.close()
        os.close(self._home)

    def _ended(self, at: float, status: str) -> Any:
        """As the plugin for hyperparameters reads it; its own function needs TensorFlow."""
        from tensorboard.compat.proto.summary_pb2 import SummaryMetadata
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

        code = api_pb2.STATUS_SUCCESS if status == "COMPLETED" else api_pb2.STATUS_FAILURE
        end = plugin_data_pb2.SessionEndInfo(status=code, end_time_secs=at)
        data = plugin_data_pb2.HParamsPluginData(
            session_end_info=end, version=metadata.PLUGIN_DATA_VERSION
        )
        content = SummaryMetadata.PluginData(
            plugin_name=metadata.PLUGIN_NAME, content=data.SerializeToString()
        )
        kind = SummaryMetadata(plugin_data=content)
        value = self._summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=kind)
        return self._summary(value=[value])


def _begin(order: dict[str, Any]) -> list[_MetricSink]:
    sinks: list[_MetricSink] = []
    for kind, make in (("mlflow", _MlflowSink), ("tensorboard", _TensorboardSink)):
        if not order.get(kind):
            continue
        try:
            sinks.append(make(order))
        except ModuleNotFoundError as missing:
            package = (missing.name or "").partition(".")[0]
            why = f"{package} is not installed here: pip install 'presage[{kind}]'"
            _say(order["job"], error=f"{kind}: {why}")
        except Exception as error:  # these libraries raise errors of their own
            _say(order["job"], error=f"{kind}: {_first_line(error)}")
    for sink in sinks:
        if isinstance(sink, _MlflowSink):
            _say(order["job"], run=sink.run)
    return sinks


def _say(job: str, **what: str) -> None:
    print(json.dumps({"job": job, **what}), flush=True)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__


def main() -> None:
    """Do what standard input says until it ends."""
    jobs: dict[str, list[_MetricSink]] = {}
    for line in sys.stdin:
        order = json.loads(line)
        job = order["job"]
        if order["do"] == "begin":
            jobs[job] = _begin(order)
            continue
        for sink in jobs.get(job, []):
            try:
                if order["do"] == "log":
                    sink.log(order["at"], order["step"], order["metrics"])
                else:
                    sink.end(order["at"], order["status"], order["reason"])
            except Exception as error:
                _say(job, error=f"{type(sink).__name__[1:-4].lower()}: {_first_line(error)}")
        if order["do"] == "end":
            jobs.pop(job, None)
            _say(job, ended="yes")


if __name__ == "__main__":
    main()
