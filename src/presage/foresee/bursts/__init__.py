"""How a distributed training's use of GPUs and networks pulses, foreseen from its graph.

`net` is the network as arrays, `graphs` what it is told of a model, `training` fits networks (with
PyTorch), `forest` says what follows from sizes and what forests make of the rest, `models` puts
all kinds behind one interface, `bundles` chooses, keeps and reads them, `rows` reads what was
measured. Measuring is `presage.telemetry.bursts`.
"""

from presage.foresee.bursts._passes import GnnKind
from presage.foresee.bursts.net import BurstNet

__all__ = ["BurstNet", "GnnKind"]
