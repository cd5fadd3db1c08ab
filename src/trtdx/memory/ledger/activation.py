"""Activations and workspace of a rank: what one step of the largest size needs beside weights and cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.memory.ledger.engine_activation import engine_activation
from trtdx.memory.ledger.torch_activation import torch_activation

if TYPE_CHECKING:
    from trtdx.memory.nouns import Component, Setup


def activation_of(setup: Setup, rank: int) -> Component:
    """Return what the largest step of a backend needs on a rank."""
    if setup.running.backend == "tensorrt":
        return engine_activation(setup, rank)
    return torch_activation(setup, rank)
