"""Complete decoders against ONNX Runtime: a prefill and 16 decode steps, the cache handed on."""

from __future__ import annotations

import numpy as np
import pytest

from support.decoders import export, feed_of, no_cache

trt = pytest.importorskip("tensorrt_rtx", reason="networks are parsed with TensorRT's own parser")
torch = pytest.importorskip("torch", reason="heavy layers are computed with torch")
pytest.importorskip("transformers", reason="the decoders are Hugging Face's")
pytest.importorskip("onnxscript", reason="torch exports with it")
onnxruntime = pytest.importorskip("onnxruntime", reason="it is what evaluate is compared with")

pytestmark = pytest.mark.heavy

STEPS = 16


class Both:
    """A decoder in ONNX Runtime and as a network of TensorRT."""

    def __init__(self, make_net, path, size):
        self.size = size
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.known = {each.name for each in self.session.get_inputs()}
        self.names = ["logits", *size.cache_names("present")]
        self.net = make_net()
        self.parser = trt.OnnxParser(self.net.trt, self.net.builder.logger)
        assert self.parser.parse_from_file(str(path))
        self.ready = self.net.prepare()

    def by_runtime(self, feed):
        return self.session.run(self.names, feed)

    def by_evaluate(self, feed):
        found = self.ready(feed)
        return [found[name] for name in self.names]

    def generate(self, compute, ids, mask):
        """Yield the logits of the prefill and of each step; the most likely token is the next."""
        past = no_cache(self.size, len(ids))
        for _ in range(STEPS + 1):
            logits, *past = compute(feed_of(self.size, ids, mask, past, self.known))
            yield logits
            ids = logits[:, -1:].argmax(-1).astype(np.int64)
            mask = np.concatenate([mask, np.ones((len(mask), 1), np.int64)], 1)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """Return what makes a decoder, each exported once."""
    from support.networks import Net

    made = {}

    def make(kind, **options):
        key = (kind, *options.items())
        if key not in made:
            path = tmp_path_factory.mktemp(kind) / "model.onnx"
            made[key] = Both(Net, path, export(kind, path, **options))
        return made[key]

    return make


def agree(both, batch, length, padding=()):
    ids = np.random.default_rng(batch).integers(0, 250, (batch, length))
    mask = np.ones((batch, length), np.int64)
    for row, count in enumerate(padding):
        mask[row, :count] = 0
    pairs = zip(both.generate(both.by_runtime, ids, mask), both.generate(both.by_evaluate, ids, mask), strict=True)
    for step, (expected, found) in enumerate(pairs):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5, err_msg=f"step {step}")


@pytest.mark.parametrize(
    "kind", ["gpt2", *(pytest.param(kind, marks=pytest.mark.heavy) for kind in ("llama", "qwen", "mixture"))]
)
def test_logits_agree_over_prefill_and_decode(decoder, kind):
    both = decoder(kind)
    agree(both, 1, 1)
    agree(both, 1, 12)
    agree(both, 3, 8, padding=(0, 4, 7))


def test_native_attention_normalisation_and_rotary_embedding_agree(decoder):
    both = decoder("recipe", attention="sdpa", opset=23)
    kinds = {layer.kind for layer in both.ready.graph.layers}
    assert {"ATTENTION_INPUT", "ROTARY_EMBEDDING"} <= kinds
    agree(both, 2, 12)
