"""Makes the generators of set-ups and artifacts (make_*.py) importable by name."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "inspect")]
