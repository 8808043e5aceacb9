"""Presage foresees what deep-learning jobs will need, and runs the cluster on that foresight.

    import presage

    presage.predict("zoo:resnet50", batch=64, gpu="a100-40g").memory_mib.p90
    presage.simulate("philly.parquet", cluster="40x8", policy="srtf").summary["avg_jct_s"]
    presage.submit("presage.yaml").wait().status

Every name in `__all__` is imported when it is first asked for, so importing `presage` costs
nothing; `from presage import job`, inside a training, imports the standard library alone.
"""

__version__ = "0.1.0"

__all__ = [
    "Client",
    "Cluster",
    "Comparison",
    "Device",
    "JobHandle",
    "Node",
    "Pipeline",
    "Placer",
    "Plan",
    "Policy",
    "PolicyConfig",
    "Prediction",
    "Predictor",
    "PresageError",
    "Reason",
    "ReasonCode",
    "Rules",
    "SimResult",
    "Trace",
    "TrainingPlan",
    "Worker",
    "compare",
    "make_trace",
    "phases",
    "pipeline",
    "plan",
    "predict",
    "read_trace",
    "rightsize",
    "simulate",
    "submit",
]

TYPE_CHECKING = (
    False  # as typing has it, for type checkers and editors; importing typing takes time
)
if TYPE_CHECKING:
    from presage._api.foresight import predict
    from presage._api.planning import plan
    from presage._api.simulation import compare, make_trace, pipeline, simulate
    from presage._api.telemetry import phases, rightsize
    from presage.client import Client, JobHandle, submit
    from presage.core.plan import Plan
    from presage.core.ports import Policy, Predictor
    from presage.foresee.answer import Prediction
    from presage.foresee.planned import TrainingPlan
    from presage.model.cluster import Device, Node, Worker
    from presage.model.errors import PresageError
    from presage.model.job import Reason, ReasonCode
    from presage.policy.config import PolicyConfig
    from presage.policy.pipeline import Pipeline, Rules
    from presage.policy.placer import Placer
    from presage.sim.clusters import Cluster
    from presage.sim.result import Comparison, SimResult
    from presage.sim.traces import Trace, read_trace
else:
    _HOMES = {
        "_api.foresight": ["predict"],
        "_api.planning": ["plan"],
        "_api.simulation": ["compare", "make_trace", "pipeline", "simulate"],
        "_api.telemetry": ["phases", "rightsize"],
        "client": ["Client", "JobHandle", "submit"],
        "core.plan": ["Plan"],
        "core.ports": ["Policy", "Predictor"],
        "foresee.answer": ["Prediction"],
        "foresee.planned": ["TrainingPlan"],
        "model.cluster": ["Device", "Node", "Worker"],
        "model.errors": ["PresageError"],
        "model.job": ["Reason", "ReasonCode"],
        "policy.config": ["PolicyConfig"],
        "policy.pipeline": ["Pipeline", "Rules"],
        "policy.placer": ["Placer"],
        "sim.clusters": ["Cluster"],
        "sim.result": ["Comparison", "SimResult"],
        "sim.traces": ["Trace", "read_trace"],
    }
    _HOME = {name: home for home, names in _HOMES.items() for name in names}

    def __getattr__(name):
        """A public name, imported now (PEP 562)."""
        if name not in _HOME:
            raise AttributeError(f"module 'presage' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(f"presage.{_HOME[name]}"), name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted([*__all__, "__version__"])
