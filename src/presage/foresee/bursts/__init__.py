"""How a distributed training's use of GPUs and networks pulses, foreseen from its graph.

`net` is the network as arrays, `graphs` what it is told of a model, `training` fits networks (with
PyTorch), `models` puts networks and boosting behind one interface, `bundles` chooses, keeps and
reads them, `rows` reads what was measured. Measuring is `presage.telemetry.bursts`.
"""

from presage.foresee.bursts._passes import GnnKind
from presage.foresee.bursts.net import BurstNet

__all__ = ["BurstNet", "GnnKind"]
