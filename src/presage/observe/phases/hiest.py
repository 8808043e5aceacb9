"""The published models of AI4DL (HotCloud 2020), used as their authors' code uses them.

Rows are taken in the order of the file, pod by pod, without resampling; the first rows of a pod
are padding and are clustered like the rest. Only for comparison: `PhaseModel.fit` makes the models
to work with. A value that is not a number stops the published code; here it is an error, too.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from presage.model.errors import BundleError, TelemetryError
from presage.observe.phases.clusters import nearest
from presage.observe.phases.crbm import CRBM, Weights

__all__ = ["HiestModel"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_POD = "pod.id"


@dataclass(frozen=True, eq=False)
class HiestModel:
    """A scaler, a CRBM and centres that were fitted elsewhere."""

    features: tuple[str, ...]
    mean: Floats
    scale: Floats
    crbm: CRBM
    centres: Floats

    @classmethod
    def read(cls, folder: Path) -> HiestModel:
        """From scaler.json, crbm_weights.npz and kmeans_centers.npz."""
        try:
            scaler = json.loads((folder / "scaler.json").read_text(encoding="utf-8"))
            features = tuple(str(name) for name in scaler["features"])
            mean, scale = (np.array(scaler[key], dtype=np.float64) for key in ("mean", "scale"))
            with np.load(folder / "crbm_weights.npz", allow_pickle=False) as file:
                weights = Weights.from_arrays({name: file[name] for name in file.files})
            with np.load(folder / "kmeans_centers.npz", allow_pickle=False) as file:
                centres = np.asarray(file["centers"], dtype=np.float64)
        except OSError as wrong:
            place = wrong.filename or folder
            raise BundleError(f"{place} cannot be read: {wrong.strerror or wrong}") from None
        except (KeyError, TypeError, ValueError) as wrong:
            raise BundleError(f"{folder} holds no model of AI4DL: {wrong}") from None
        hidden, visible = weights.W.shape
        sound = (
            mean.shape == scale.shape == (len(features),)
            and visible == len(features)
            and centres.ndim == 2
            and centres.shape[1] == hidden
            and all(np.isfinite(part).all() for part in (mean, scale, centres))
            and bool((scale > 0).all())
        )
        if not sound:
            raise BundleError(f"the scaler, the CRBM and the centres in {folder} do not fit")
        return cls(features, mean, scale, CRBM.from_weights(weights, compat="hiest"), centres)

    def predict(self, path: Path | str) -> dict[str, Ints]:
        """The phase of each row of a CSV file, by pod."""
        return {
            pod: nearest(activations, self.centres)[0]
            for pod, activations in self.activations(path).items()
        }

    def activations(self, path: Path | str) -> dict[str, Floats]:
        """The hidden means behind the phases."""
        return {
            pod: self.crbm.activations((rows - self.mean) / self.scale)
            for pod, rows in self._rows(Path(path)).items()
        }

    def _rows(self, path: Path) -> dict[str, Floats]:
        pods: dict[str, list[list[float]]] = {}
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                reader = csv.reader(file)
                header = next(reader, [])
                for row in filter(None, reader):
                    if len(row) == len(header) + 1:  # numbered rows under a header that says less
                        del row[0]
                    named = dict(zip(header, row, strict=True))
                    values = [float(named[name]) for name in self.features]
                    if not np.isfinite(values).all():
                        raise ValueError("a value is not finite")
                    pods.setdefault(named[_POD], []).append(values)
        except OSError as wrong:
            raise TelemetryError(f"{path} cannot be read: {wrong.strerror or wrong}") from None
        except KeyError as missing:
            raise TelemetryError(f"{path} has no column {missing}") from None
        except (ValueError, csv.Error) as wrong:
            raise TelemetryError(f"{path} line {reader.line_num}: {wrong}") from None
        return {pod: np.array(rows) for pod, rows in pods.items()}
