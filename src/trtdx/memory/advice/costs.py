"""What a change costs beside memory: one small table, in points that only compare with each other.

A point of accuracy is what users of an evaluated model notice last (FP8 weights are 1, four bits about 2); one of
throughput or latency is about a tenth; effort is a restart 0, an engine build 1, a conversion 2; money is one for each
GPU that is added for one there was. Limits (tokens, batch, seq) cost theirs for each halving. Negative points are gains. The table orders advice; it measures nothing.
"""

from __future__ import annotations

from typing import NamedTuple


class Harm(NamedTuple):
    """The costs of one change, and its words on speed."""

    accuracy: float = 0
    throughput: float = 0
    latency: float = 0
    effort: float = 0
    money: float = 0
    function: float = 0  # something that was asked for is given up
    words: str = ""  # what it does to throughput and latency

    @property
    def points(self) -> float:
        """Return the whole cost; a gain of speed makes up for a loss of speed, and for one point of the rest."""
        speed = max(self.throughput + self.latency, -1.0)
        rest = self.accuracy * 2 + self.function * 2 + self.effort + self.money * 6
        return max(rest + speed, 0.1)


HARMS: dict[str, Harm] = {
    "context_fmha": Harm(throughput=-2, latency=-1, words="faster prompts"),
    "packed": Harm(throughput=-2, latency=-1, words="faster: no work is spent on padding"),
    "gemm_plugin": Harm(words="about as fast; FP8 and small batches may be slower"),
    "paged_kv": Harm(throughput=-2, words="more requests at once; batching in flight needs it"),
    "attention_plugin": Harm(throughput=-2, latency=-2, words="faster attention"),
    "logits": Harm(function=2, words="faster; logits of the prompt are not returned any more"),
    "profiles": Harm(throughput=1, words="kernels are chosen for one range of sizes only: somewhat slower"),
    "chunked": Harm(throughput=0.3, latency=0.3, words="prompts longer than a step take several: first token a little later"),
    "tokens": Harm(throughput=0.6, latency=0.6, words="fewer prompt tokens a step: slower prompts, steadier answers"),
    "batch": Harm(throughput=1, words="fewer requests at once; each is as fast or faster"),
    "seq": Harm(function=1, words="longer requests are refused"),
    "beam": Harm(accuracy=1, throughput=-2, latency=-1, words="faster; fewer beams"),
    "fraction": Harm(function=0.3, words="as fast; less is left for what is allocated later"),
    "kv_fp8": Harm(accuracy=0.4, throughput=-1, words="attention reads half as much: somewhat faster at long lengths"),
    "kv_int8": Harm(accuracy=0.7, words="attention reads half as much; no FP8 context attention"),
    "kv_nvfp4": Harm(accuracy=1.5, throughput=-1, words="attention reads a quarter as much"),
    "weights_8": Harm(accuracy=1, throughput=-3, latency=-3, words="steps up to twice as fast"),
    "weights_8_only": Harm(accuracy=0.7, throughput=0, latency=-2, words="faster at small batches, as before at large ones"),
    "weights_4": Harm(accuracy=2, throughput=1, latency=-4, words="faster at small batches, slower at large ones"),
    "weights_fp4": Harm(accuracy=1.8, throughput=-4, latency=-4, words="steps up to three times as fast"),
    "graphs": Harm(latency=3, throughput=1, words="more time between kernels: slower at small batches"),
    "piecewise": Harm(latency=1, words="prompts without graphs: first token a little later"),
    "embedding": Harm(throughput=0.2, words="one more collective a step"),
    "tp": Harm(throughput=1, latency=-3, words="faster answers; less throughput for each GPU"),
    "pp": Harm(throughput=0.5, latency=2, words="answers as slow as now or slower; throughput scales"),
    "gpu": Harm(words="as fast as that GPU is"),
}  # fmt: skip
EFFORT = {"launch": 0.0, "serve": 0.0, "build": 1.0, "convert": 2.0, "install": 3.0}
