"""Which mistake explains what a candidate made of a module's inputs."""

from __future__ import annotations

from trtdx.compare.attribute.run import Suspect, choose_cause, explanation_degree, find_causes

__all__ = ["Suspect", "choose_cause", "explanation_degree", "find_causes"]
