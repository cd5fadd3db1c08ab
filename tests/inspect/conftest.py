"""Makes the generators of artifacts (make_*.py) importable by name from every test below this folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
