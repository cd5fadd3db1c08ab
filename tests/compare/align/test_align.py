"""Which tensor is which: real captures of three engines, names of several conventions, steps, and mappings."""

from __future__ import annotations

import numpy as np
import pytest

from support.captures import Text, agree, compared, opened, place, vectors, write
from support.paths import TINY
from trtdx.capture.store.format import CaptureHeader
from trtdx.capture.store.writer import CaptureWriter
from trtdx.compare.align.align import align_sides
from trtdx.compare.align.mapping import parse_mapping, read_mapping
from trtdx.compare.align.name_meanings import tensor_in_words
from trtdx.compare.align.pair_rows import TokenPosition, row_tokens
from trtdx.compare.sides.side import ComparisonQuestion, open_side, parse_side
from trtdx.errors import InputError, UnknownNameError
from trtdx.host import RealHost
from trtdx.tensors.statistics import source_from_array

LAYER = "model.layers.0."
TRTLLM = "transformer.layers.0."


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """Return what the example's model computes of a padded batch on three engines."""
    for package in ("torch", "transformers", "onnxruntime", "tensorrt_rtx"):
        pytest.importorskip(package)
    host, folder = RealHost(), tmp_path_factory.mktemp("engines")
    asked = ComparisonQuestion(prompts=((1, 5, 9, 30), (7, 8)), new_tokens=3)
    texts = {
        "hf": f"hf:{TINY}/model?threads=1",
        "onnx": f"onnx:{TINY}/model.onnx",
        "trt": f"trt:{TINY}/model.onnx",
    }
    sides = {}
    for kind, text in texts.items():
        forced = sides["hf"].step_tokens() if sides else None
        sides[kind] = open_side(host, parse_side(host, text), asked, folder / kind, forced=forced)
    return sides


@pytest.mark.parametrize(("ours", "theirs"), [("hf", "onnx"), ("hf", "trt"), ("onnx", "trt"), ("onnx", "hf")])
def test_engines_of_one_model(engines, ours, theirs):
    reference, candidate = engines[ours], engines[theirs]
    found = align_sides(reference, candidate)
    pair_rows = agree(found, reference, candidate)
    outputs = {name for name in reference.capture.names() if name.endswith(":out") and "present" not in name}
    assert outputs <= set(pair_rows)
    assert {pair.step for pair in found.pairs} == {0, 1, 2}
    assert not found.notes
    assert row_tokens(pair_rows[f"{LAYER}mlp:out"]) == [
        TokenPosition(0, 0),
        TokenPosition(0, 1),
        TokenPosition(0, 2),
        TokenPosition(0, 3),
        TokenPosition(1, 0),
        TokenPosition(1, 1),
    ]


def test_pairs_follow_the_data_flow(engines):
    names = [pair.name for pair in align_sides(engines["hf"], engines["onnx"]).pairs if pair.step == 1]
    wanted = ["input_ids", "model.embed_tokens:out", f"{LAYER}self_attn.k_proj:out", "present.0.key:new",
              f"{LAYER}self_attn.o_proj:in", f"{LAYER}mlp:out", "model.norm:out", ":out.logits"]  # fmt: skip
    assert [name for name in names if name in wanted] == wanted


def test_named_inputs_of_torch_are_the_numbered_ones_of_a_graph(engines):
    pair_rows = {pair.name: pair for pair in align_sides(engines["hf"], engines["onnx"]).pairs}
    attention = f"{LAYER}self_attn:in"
    assert pair_rows[f"{attention}.hidden_states"].candidate.first.name == attention
    assert pair_rows[f"{attention}.position_embeddings.1"].candidate.first.name == f"{attention}[2]"
    assert pair_rows[f"{attention}.attention_mask"].candidate.joined_changes[0].text == "mask"
    assert pair_rows["model:in.position_ids"].candidate.first.name == "model:in[1]"


def test_what_has_no_counterpart_is_told_with_the_reason(engines):
    found = align_sides(engines["hf"], engines["onnx"]).unmatched
    reasons = {(each.side, each.name): each.reason for each in found}
    assert reasons["candidate", f"{LAYER}self_attn:in[3]"] == "only in the compiled graph"
    assert reasons["reference", f"{LAYER}self_attn:in.position_ids"].startswith("the module has no input")


HF = {
    "model.embed_tokens:out": 8, f"{LAYER}input_layernorm:out": 8, f"{LAYER}self_attn.o_proj:out": 8,
    f"{LAYER}post_attention_layernorm:out": 8, f"{LAYER}mlp.gate_proj:out": 12, f"{LAYER}mlp.up_proj:out": 12,
    f"{LAYER}mlp.down_proj:out": 8, f"{LAYER}mlp:out": 8, "model.norm:out": 8, "lm_head:out": 20,
}  # fmt: skip


def renamed(step, names):
    return {names.get(name, name): array for name, array in step.items()}


def pairs_of(found):
    return {pair.name: pair.candidate.first.name for pair in found.pairs}


@pytest.mark.parametrize("wrapper", ["m.", "module.", "base_model.model.", "wrapped.module."])
def test_wrappers_around_a_model_do_not_matter(tmp_path, wrapper):
    step = Text(5).padded(HF)
    ours = write(tmp_path / "a", [step])
    theirs = write(tmp_path / "b", [{(wrapper + name if ":" in name else name): array for name, array in step.items()}])
    found = align_sides(ours, theirs)
    assert {pair.name for pair in found.pairs} == set(step)
    assert all(pair.matched_by == "scope" for pair in found.pairs if ":" in pair.name)
    agree(found, ours, theirs)


def test_wrappers_around_a_model_without_layers_do_not_matter(tmp_path):
    step = {"fc1:out": np.arange(12, dtype="f4").reshape(3, 4), "fc2:out": np.ones((3, 2), "f4")}
    ours = write(tmp_path / "a", [step])
    theirs = write(tmp_path / "b", [{f"module.{name}": 3 * array for name, array in step.items()}])
    found = align_sides(ours, theirs)
    assert pairs_of(found) == {name: f"module.{name}" for name in step}
    assert {pair.matched_by for pair in found.pairs} == {"scope"}


CONVENTIONS = {
    "TensorRT-LLM": {
        "model.embed_tokens:out": "transformer.vocab_embedding:out",
        f"{LAYER}input_layernorm:out": f"{TRTLLM}input_layernorm:out",
        f"{LAYER}self_attn.o_proj:out": f"{TRTLLM}attention.dense:out",
        f"{LAYER}post_attention_layernorm:out": f"{TRTLLM}post_layernorm:out",
        f"{LAYER}mlp.gate_proj:out": f"{TRTLLM}mlp.fc:out",
        f"{LAYER}mlp.up_proj:out": f"{TRTLLM}mlp.gate:out",
        f"{LAYER}mlp.down_proj:out": f"{TRTLLM}mlp.proj:out",
        f"{LAYER}mlp:out": f"{TRTLLM}mlp_output",
        "model.norm:out": "transformer.ln_f:out",
        "lm_head:out": "logits",
    },
    "GPT-2": {
        "model.embed_tokens:out": "transformer.wte:out",
        f"{LAYER}input_layernorm:out": "transformer.h.0.ln_1:out",
        f"{LAYER}self_attn.o_proj:out": "transformer.h.0.attn.c_proj:out",
        f"{LAYER}post_attention_layernorm:out": "transformer.h.0.ln_2:out",
        f"{LAYER}mlp.down_proj:out": "transformer.h.0.mlp.c_proj:out",
        f"{LAYER}mlp:out": "transformer.h.0.mlp:out",
        "model.norm:out": "transformer.ln_f:out",
    },
    "Llama of Meta": {
        "model.embed_tokens:out": "tok_embeddings:out",
        f"{LAYER}input_layernorm:out": "layers.0.attention_norm:out",
        f"{LAYER}self_attn.o_proj:out": "layers.0.attention.wo:out",
        f"{LAYER}post_attention_layernorm:out": "layers.0.ffn_norm:out",
        f"{LAYER}mlp.gate_proj:out": "layers.0.feed_forward.w1:out",
        f"{LAYER}mlp.up_proj:out": "layers.0.feed_forward.w3:out",
        f"{LAYER}mlp.down_proj:out": "layers.0.feed_forward.w2:out",
        "lm_head:out": "output:out",
    },
}


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_other_conventions_of_naming(tmp_path, convention):
    names = CONVENTIONS[convention]
    step = {name: array for name, array in Text(5, 3).padded(HF).items() if ":" not in name or name in names}
    ours = write(tmp_path / "a", [step])
    theirs = write(tmp_path / "b", [renamed(step, names)])
    found = align_sides(ours, theirs)
    assert {name: other for name, other in pairs_of(found).items() if ":" in name} == names
    agree(found, ours, theirs)


def test_names_without_meaning_are_matched_by_values_with_low_confidence(tmp_path):
    step = Text(5).padded(HF)
    scrambled = {name: f"val_{number}.x" for number, name in enumerate(HF)}
    ours = write(tmp_path / "a", [step])
    noisy = {name: array * np.float32(1.0001) if name in HF else array for name, array in step.items()}
    noisy["model.norm:out"] = -noisy["model.norm:out"]  # nothing like it is left
    theirs = write(tmp_path / "b", [renamed(noisy, scrambled)])
    found = align_sides(ours, theirs)
    matched = {pair.name: pair for pair in found.pairs if pair.matched_by == "shape and order"}
    assert set(matched) == set(HF) - {"model.norm:out"}
    assert all(pair.confidence == 0.5 for pair in matched.values())
    assert all(scrambled[name] == pair.candidate.first.name for name, pair in matched.items())
    assert "model.norm:out" in {each.name for each in found.unmatched}


def test_shapes_that_nothing_explains_are_told(tmp_path):
    text = Text(5)
    ours = write(tmp_path / "a", [text.padded({f"{LAYER}mlp:out": 8})])
    theirs = write(tmp_path / "b", [text.padded({f"{LAYER}mlp:out": 9})])
    found = align_sides(ours, theirs)
    assert [each.reason for each in found.unmatched] == ["shape [1, 5, 8] against [1, 5, 9]"]


def test_without_values_only_the_same_layout_can_be_compared(tmp_path):
    text = Text(3, 3)
    ours = write(tmp_path / "a", [text.padded({"model.norm:out": 4})])
    same = write(tmp_path / "b", [text.padded({"model.norm:out": 4})], values=False)
    flat = text.packed({"model.norm:out": 4})
    write(tmp_path / "c", [{name: array for name, array in flat.items() if ":" not in name}])
    pair = align_sides(ours, same).pairs[-1]
    assert pair.name == "model.norm:out"
    assert not pair.has_values
    with CaptureWriter(tmp_path / "c", CaptureHeader(), parquet=False, resume=True) as writer:
        writer.add(0, place("model.norm:out"), source_from_array(flat["model.norm:out"]))
    found = align_sides(ours, opened(tmp_path / "c"))
    assert ("model.norm:out", "values were not kept") in {(each.name, each.reason) for each in found.unmatched}


# ---- steps and tokens


WIDTHS = {"model.embed_tokens:out": 4, f"{LAYER}mlp:out": 6}


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_never_counts(tmp_path, side):
    text = Text(6, 2, 4)
    ours = write(tmp_path / "a", [text.padded(WIDTHS, garbage=1.0)])
    theirs = write(tmp_path / "b", [text.padded(WIDTHS, side=side, garbage=np.nan)])
    pair_rows = agree(align_sides(ours, theirs), ours, theirs, WIDTHS)
    assert row_tokens(pair_rows[f"{LAYER}mlp:out"]) == [
        TokenPosition(row, at) for row, length in enumerate((6, 2, 4)) for at in range(length)
    ]


def test_as_many_tokens_as_numbers_and_one_more_dimension_confuse_nobody(tmp_path):
    text = Text(4)
    name = "model.embed_tokens:out"
    made = text.padded({name: 4})
    ours = write(tmp_path / "a", [made])
    theirs = write(tmp_path / "b", [made | {name: made[name][:, None]}])
    agree(align_sides(ours, theirs), ours, theirs, {name: 4})


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_a_prefill_against_one_in_chunks(tmp_path, chunk, turned):
    text = Text(7)
    whole = [text.padded(WIDTHS)]
    parts = {10 + at: text.padded(WIDTHS, begin=at, end=at + chunk) for at in range(0, 7, chunk)}
    sides = [write(tmp_path / "a", whole), write(tmp_path / "b", parts)]
    ours, theirs = sides[::-1] if turned else sides
    found = align_sides(ours, theirs)
    agree(found, ours, theirs, WIDTHS)
    rows = [len(pair.tokens) for pair in found.pairs if pair.name == f"{LAYER}mlp:out"]
    assert rows == ([min(chunk, 7 - at) for at in range(0, 7, chunk)] if turned else [7])


def test_tokens_that_differ_end_the_comparison_of_their_sequence(tmp_path):
    text, other = Text(6, 6), Text(6, 6)
    other.ids[1][4] += 1
    steps = [(0, 3), (3, 4), (4, 5), (5, 6)]
    ours = write(tmp_path / "a", [text.padded(WIDTHS, begin=a, end=b) for a, b in steps])
    theirs = write(tmp_path / "b", [other.padded(WIDTHS, begin=a, end=b) for a, b in steps])
    found = align_sides(ours, theirs)
    last = [pair for pair in found.pairs if pair.step == 2 and pair.name == f"{LAYER}mlp:out"]
    assert row_tokens(last[0]) == [TokenPosition(0, 4)]
    assert "sequence 1 was fed token" in found.notes[0]
    assert "at position 4" in found.notes[0]


def test_steps_after_other_tokens_are_not_comparable(tmp_path):
    text, other = Text(6), Text(6)
    other.ids[0][4] += 1
    steps = [(0, 4), (4, 5), (5, 6)]
    ours = write(tmp_path / "a", [text.padded(WIDTHS, begin=a, end=b) for a, b in steps])
    theirs = write(tmp_path / "b", [other.padded(WIDTHS, begin=a, end=b) for a, b in steps])
    found = align_sides(ours, theirs)
    assert {pair.step for pair in found.pairs} == {0}
    assert any("not comparable" in each.reason for each in found.unmatched)


def test_chosen_tokens_tell_where_no_input_was_captured(tmp_path):
    def generation(folder, chosen):
        with CaptureWriter(folder, CaptureHeader(), parquet=False) as writer:
            for step, token in enumerate(chosen):
                writer.add(
                    step,
                    place("model.norm:out"),
                    source_from_array(np.ones((1, 1, 4), np.float32)),
                    values=True,
                )
                writer.note(step, {"kind": "step", "tokens": [token], "generator": ["0", "0"], "cached": step,
                                   "grown": {}, "sampling": [0.0, 0, 1.0, 0, [], 0]})  # fmt: skip
        return opened(folder)

    found = align_sides(generation(tmp_path / "a", [5, 6, 7, 8]), generation(tmp_path / "b", [5, 9, 7, 8]))
    assert [pair.step for pair in found.pairs] == [0, 1]
    assert "other tokens were chosen at step 1" in found.notes[0]


def test_sequences_in_another_order_and_beams(tmp_path):
    text = Text(5, 4, 3)
    ours = write(tmp_path / "a", [text.padded(WIDTHS)])
    theirs = write(tmp_path / "b", [text.padded(WIDTHS, rows=[2, 0, 1])])
    found = align_sides(ours, theirs)
    agree(found, ours, theirs, WIDTHS)
    assert "matched by their tokens" in found.notes[0]
    beams = write(tmp_path / "c", [text.padded(WIDTHS, rows=[0, 0, 1, 1, 2, 2])])
    found = align_sides(ours, beams)
    agree(found, ours, beams, WIDTHS)
    assert "3 other beam or sequences" in found.notes[0]


def test_a_dump_of_tensorrt_llm_against_the_model(tmp_path):
    """It tells neither its tokens nor an order, and its tokens are packed."""
    text, names = Text(5, 3), CONVENTIONS["TensorRT-LLM"]
    ours = write(tmp_path / "a", [text.padded(HF)])
    folder = tmp_path / "tllm_debug" / "PP_0" / "TP_0" / "CP_0"
    folder.mkdir(parents=True)
    for name, array in text.packed(HF, lengths=False).items():
        if name in names:
            np.save(folder / f"{names[name].removesuffix(':out')}-step0.npy", array)
    host = RealHost()
    dump = open_side(host, parse_side(host, str(tmp_path / "tllm_debug")), ComparisonQuestion(), tmp_path / "b")
    found = align_sides(ours, dump)
    agree(found, ours, dump, HF)
    assert any("those of the other side are assumed" in note for note in found.notes)
    order = [pair.name for pair in align_sides(dump, ours).pairs]
    assert [name for name in order if "layers" in name] == [
        f"{TRTLLM}input_layernorm", f"{TRTLLM}attention.dense", f"{TRTLLM}post_layernorm", f"{TRTLLM}mlp.fc",
        f"{TRTLLM}mlp.gate", f"{TRTLLM}mlp.proj", f"{TRTLLM}mlp_output",
    ]  # fmt: skip
    assert order[0] == "transformer.vocab_embedding"
    assert order[-1] == "logits"


def test_masks_are_compared_by_what_they_hide(tmp_path):
    text, name = Text(4), f"{LAYER}self_attn:in.attention_mask"
    seen = np.tril(np.ones((4, 4), bool))[None, None]
    forms = {"bool": seen, "fp16": np.where(seen, 0, -65504).astype(np.float16),
             "fp32": np.where(seen, 0, np.finfo(np.float32).min).astype(np.float32),
             "inf": np.where(seen, 0, -np.inf).astype(np.float32)}  # fmt: skip
    sides = {form: write(tmp_path / form, [{**text.padded({}), name: array}]) for form, array in forms.items()}
    for ours in sides.values():
        for theirs in sides.values():
            agree(align_sides(ours, theirs), ours, theirs, [name])
    wrong = write(tmp_path / "wrong", [{**text.padded({}), name: np.where(seen[..., ::-1], 0, -1e9)}])
    pair = next(pair for pair in align_sides(sides["fp32"], wrong).pairs if pair.name == name)
    assert np.not_equal(*compared(pair, sides["fp32"], wrong)).any()


# ---- mappings


def test_a_mapping_goes_round(tmp_path):
    text = Text(4, 2)
    names = CONVENTIONS["TensorRT-LLM"]
    ours = write(tmp_path / "a", [text.padded(HF)])
    theirs = write(tmp_path / "b", [renamed(text.packed(HF), names)])
    first = align_sides(ours, theirs)
    host = RealHost()
    host.write(str(tmp_path / "map.yaml"), first.mapping.text.encode())
    read = read_mapping(host, str(tmp_path / "map.yaml"))
    assert read == first.mapping
    again = align_sides(ours, theirs, mapping=read)
    assert [(pair.name, pair.candidate.first.name) for pair in again.pairs] == [
        (pair.name, pair.candidate.first.name) for pair in first.pairs
    ]
    assert all(pair.matched_by == "map" for pair in again.pairs)
    agree(again, ours, theirs, HF)


def test_a_mapping_stands_above_names(tmp_path):
    text = Text(4)
    ours = write(
        tmp_path / "a",
        [text.padded({"model.layers.0.mlp:out": 4, "model.layers.1.mlp:out": 4, "x.y:out": 4})],
    )
    theirs = write(
        tmp_path / "b",
        [text.padded({"model.layers.0.mlp:out": 4, "model.layers.1.mlp:out": 4, "z.0.w:out": 4, "z.1.w:out": 4})],
    )
    found = align_sides(ours, theirs, mapping=parse_mapping("model.layers.*.mlp:out: z.*.w:out\nx.y:out: null\n"))
    assert {name: other for name, other in pairs_of(found).items() if ":" in name} == {
        "model.layers.0.mlp:out": "z.0.w:out", "model.layers.1.mlp:out": "z.1.w:out",
    }  # fmt: skip
    assert "left out by the mapping" in {each.reason for each in found.unmatched if each.name == "x.y:out"}


@pytest.mark.parametrize(
    ("text", "error", "told"),
    [
        ("model.norm:ou: model.norm:out", UnknownNameError, "did you mean model.norm:out"),
        ("model.norm:out: model.nrm:out", UnknownNameError, "did you mean model.norm:out"),
        ("model.norm:out: model.norm:out | turn 1", InputError, "write transpose"),
        ("- a\n- b", InputError, "write a line for each"),
        ("model.norm:out: [1]", InputError, "name a tensor"),
        ("a: *b", InputError, ""),
    ],
)
def test_mistakes_in_a_mapping_are_told(tmp_path, text, error, told):
    side = write(tmp_path / "a", [Text(3).padded({"model.norm:out": 4})])
    with pytest.raises(error) as raised:
        align_sides(side, side, mapping=parse_mapping(text))
    assert told in raised.value.fix


def test_pieces_are_small_and_whole(tmp_path, monkeypatch):
    from trtdx.compare.align import pair_rows

    monkeypatch.setattr(pair_rows, "PIECE_ELEMENTS", 16)
    monkeypatch.setattr(pair_rows, "RELEASE_BYTES", 64)
    text = Text(9, 5)
    ours = write(tmp_path / "a", [text.padded(WIDTHS)])
    theirs = write(tmp_path / "b", [text.packed(WIDTHS)])
    pair = next(pair for pair in align_sides(ours, theirs).pairs if pair.name == f"{LAYER}mlp:out")
    pieces = list(pair_rows.iterate_row_pieces(pair, ours, theirs))
    assert max(one.size for one, _ in pieces) <= 16
    one, other = compared(pair, ours, theirs)
    wanted = np.concatenate([vectors(f"{LAYER}mlp:out", row, range(length), 6) for row, length in enumerate((9, 5))])
    assert (one == wanted).all()
    assert (other == wanted).all()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model.layers.3.mlp:out", "model.layers.3.mlp:out"),
        ("h.4:in[3]", "the 4th input of h.4"),
        ("h.4#1:out[1]", "the 2nd output of h.4 (2nd call)"),
        ("h.4#1:out", "h.4:out (2nd call)"),
        ("h.4#10", "h.4 (11th call)"),
        (":in[20]", "the 21st input of the model"),
        ("layers.0:in.hidden_states", "layers.0:in.hidden_states"),
        ("logits", "logits"),
        ("node#x", "node#x"),
    ],
)
def test_a_name_is_said_in_words_where_it_has_numbers_of_the_tool(name, said):
    assert tensor_in_words(name) == said


@pytest.mark.parametrize("exchanged", [False, True])
def test_calls_of_one_module_are_paired_by_what_they_give(tmp_path, exchanged):
    """Gemma 3 calls its rotary embeddings once for each kind of layer, in the order of a set."""
    calls = [np.arange(12, dtype="f4").reshape(3, 4), np.ones((3, 4), "f4")]
    order = calls[::-1] if exchanged else calls
    sides = [
        write(tmp_path / name, [{"model.rotary_emb:out": both[0], "model.rotary_emb#1:out": both[1]}])
        for name, both in (("one", calls), ("two", order))
    ]
    pair_rows = {pair.name: pair.candidate.first.name for pair in align_sides(*sides).pairs}
    twins = ["model.rotary_emb:out", "model.rotary_emb#1:out"]
    assert pair_rows == dict(zip(twins, twins[::-1] if exchanged else twins, strict=True))


@pytest.mark.parametrize("exchanged", [False, True])
def test_calls_that_a_graph_has_as_outputs_of_one_are_paired_by_what_they_give(tmp_path, exchanged):
    slow, fast = np.arange(12, dtype="f4").reshape(3, 4), np.ones((3, 4), "f4")
    torch_calls = {"model.rotary_emb:out": slow, "model.rotary_emb#1:out": fast}
    outputs = [fast, slow] if exchanged else [slow, fast]
    graph = dict(zip(["model.rotary_emb:out", "model.rotary_emb:out[1]"], outputs, strict=True))
    sides = [write(tmp_path / "torch", [torch_calls]), write(tmp_path / "graph", [graph])]
    pair_rows = {pair.name: pair.candidate.first.name for pair in align_sides(*sides).pairs}
    assert pair_rows == dict(zip(torch_calls, list(graph)[::-1] if exchanged else list(graph), strict=True))
