"""Makes the helpers beside the tests importable by name.

TensorRT and torch are imported by fixtures only, so that tests without them are skipped and say so.
"""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def make_net():
    from support.networks import Net

    return Net


@pytest.fixture
def net(make_net):
    return make_net()


@pytest.fixture
def log():
    from support.networks import LOG

    LOG.told.clear()
    return LOG.told


@pytest.fixture
def rng():
    return np.random.default_rng(0)
