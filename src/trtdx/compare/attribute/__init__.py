"""Which mistake explains what a candidate made of a module's inputs."""

from __future__ import annotations

from trtdx.compare.attribute.run import Suspect, attribute, cause, degree

__all__ = ["Suspect", "attribute", "cause", "degree"]
