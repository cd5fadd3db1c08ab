"""Makes the helpers beside the tests importable by name.

TensorRT and torch are imported by fixtures only, so that tests without them are skipped and say so.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def make_net():
    from networks import Net

    return Net


@pytest.fixture
def net(make_net):
    return make_net()


@pytest.fixture
def log():
    from networks import LOG

    LOG.told.clear()
    return LOG.told


@pytest.fixture
def rng():
    return np.random.default_rng(0)
