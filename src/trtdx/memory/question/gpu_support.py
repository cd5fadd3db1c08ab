"""Which GPUs lack fused attention, by release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.knowledge.versions import at_least
from trtdx.memory.nouns import LAST_STABLE_RELEASE

if TYPE_CHECKING:
    from trtdx.memory.nouns import Device, Setup

# The fused attention of engines has kernels for compute capability 8.0 and later, and for 7.0 from 0.8 to 0.15. Up to
# 0.11 an engine fell back to plain attention elsewhere; since then its runner refuses to be made ("Unsupported
# architecture", kernels/contextFusedMultiHeadAttention/fmhaRunner.cpp at 0.8.0 to 1.2.1).
FUSED_SINCE_SM = 80
REFUSED_SINCE = "0.12.0"
VOLTA_SINCE, VOLTA_UNTIL = "0.8.0", "0.16.0"


def lacks_fused_attention(device: Device | None, version: str) -> bool:
    """Return whether an engine's prompts cannot use fused attention on a GPU."""
    sm = device.sm if device else 0
    release = version or LAST_STABLE_RELEASE
    if not sm or sm >= FUSED_SINCE_SM:
        return False
    is_volta_time = at_least(release, VOLTA_SINCE) and not at_least(release, VOLTA_UNTIL)
    return not (sm == 70 and is_volta_time)


def must_disable_fused_attention(setup: Setup) -> bool:
    """Return whether a flag has to turn fused attention off, because the build fails with it."""
    release = setup.release
    return lacks_fused_attention(setup.device, release) and at_least(release, REFUSED_SINCE)
