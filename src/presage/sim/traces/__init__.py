"""Read job traces of other systems into one table the simulator understands.

`read_trace` knows six formats and tells them apart by their columns. It checks every row and
refuses a trace with one line that names the row; it never repairs values and schedules nothing.
"""

from __future__ import annotations

from presage.sim.traces._read import FORMATS, read_trace
from presage.sim.traces._table import COLUMNS, Trace, complete

__all__ = ["COLUMNS", "FORMATS", "Trace", "complete", "read_trace"]
