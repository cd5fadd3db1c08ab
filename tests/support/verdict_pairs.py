"""Small models as sides of a comparison, with mistakes planted in the candidate."""

from __future__ import annotations

import numpy as np

from trtdx.compare.align.align import align_sides
from trtdx.compare.judge.honest_runs import ReferenceRuns
from trtdx.compare.nouns import PairVerdict
from trtdx.compare.sides.side import MODULE_BORDERS, ComparisonQuestion, Side, SideSpec, open_side, record_run
from trtdx.host import RealHost

VOCABULARY = 64
ALONE = {"threads": "1"}  # many small products are slower on threads that wait for each other
QUESTION = ComparisonQuestion(
    prompts=tuple(tuple(np.random.default_rng(7).integers(1, VOCABULARY, length).tolist()) for length in (12, 9)),
    new_tokens=1,
)


def save_llama(folder, layers=3, hidden=64, **more):
    import torch
    import transformers

    torch.manual_seed(3)
    sizes = {
        "hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": layers, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 128, "initializer_range": 0.1,
    }  # fmt: skip
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes | more))
    model.save_pretrained(folder)
    return folder


def side(spec, folder, *, question=QUESTION, forced=None, selector=MODULE_BORDERS):
    return open_side(RealHost(), spec, question, folder, forced=forced, selector=selector)


def mistaken(spec, folder, mistake, *, forced, question=QUESTION, selector=MODULE_BORDERS):
    """Return a candidate whose model is changed by a function before it runs."""
    import torch

    engine = spec.open(selector)
    _ = engine.tap_effect
    with torch.no_grad():
        mistake(engine.model)
    try:
        record_run(RealHost(), engine, question, folder, forced=forced)
    finally:
        engine.close()
    return Side(SideSpec("capture", str(folder)), folder)


def runs_of(reference, candidate, folder, *, question=QUESTION):
    return ReferenceRuns(RealHost(), question, folder, reference, candidate)


def pairs_of(reference, candidate):
    return align_sides(reference, candidate).pairs


def wrong(judged):
    return [each for each in judged if each.verdict is PairVerdict.WRONG]
