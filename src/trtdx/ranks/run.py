"""The door of this room: what ranks see (`check`), whether they work (`smoke`), how to start them (`launch`)."""

from __future__ import annotations

from trtdx.ranks.check import check_ranks, report_probes
from trtdx.ranks.launch.run import report_launch
from trtdx.ranks.smoke.run import report_smoke, run_smoke

__all__ = ["check_ranks", "report_launch", "report_probes", "report_smoke", "run_smoke"]
