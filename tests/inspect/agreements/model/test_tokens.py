"""Token ids: what the tokenizer gives, what the model has rows for, and where an answer ends."""

from __future__ import annotations

import pytest

from trtdx.inspect.agreements import agreements_in
from trtdx.inspect.agreements.model import tokens
from trtdx.inspect.agreements.server import triton_tokens
from trtdx.inspect.facts.page_examples import deployment_from_example
from trtdx.model import Severity


def found(text):
    deployment = deployment_from_example(text)
    return [
        (row.code, violation) for row in agreements_in(tokens, triton_tokens) for violation in row.check(deployment)
    ]


def codes(text):
    return [code for code, _ in found(text)]


# Sizes as published: (ids of the tokenizer, vocab_size of config.json).
PADDED = {
    "Qwen2.5-7B": (151665, 152064),
    "Qwen2-0.5B": (151646, 151936),
    "Phi-3-mini": (32011, 32064),
    "phi-2": (50295, 51200),
    "gpt-j-6b": (50257, 50400),
    "opt-1.3b": (50265, 50272),
    "bloom": (250680, 250880),
    "flan-t5": (32100, 32128),
    "byt5": (259, 384),
    "Llama-3.1-8B": (128256, 128256),
    "DeepSeek-V3": (128815, 129280),
    "gemma-3-1b": (262145, 262144 + 64),
}


@pytest.mark.parametrize("name", PADDED)
def test_a_padded_vocabulary_is_no_disagreement(name):
    size, vocabulary = PADDED[name]
    text = (
        f"[tokenizer]\ntokenizer.size = {size}\n[hf]\nvocab_size = {vocabulary}\n[engine]\nvocab_size = {vocabulary}\n"
    )
    assert codes(text) == []


def test_a_tokenizer_that_is_too_large_for_all_is_told_once():
    text = """
    [hf]
    vocab_size = 32000
    tokenizer.size = 32005
    [checkpoint]
    vocab_size = 32000
    [engine]
    vocab_size = 32000
    """
    [(code, violation)] = found(text)
    assert (code, violation.values["last_id"], violation.values["extra"]) == ("DX820", 32004, 5)


def test_rows_of_the_embedding_count_where_config_json_says_less():
    text = "[hf]\nvocab_size = 32000\nweights.embedding_shape = [32064, 4096]\ntokenizer.size = 32005\n"
    assert codes(text) == []


def test_one_filling_token_too_many_is_a_warning():
    text = "[hf]\nvocab_size = 32000\ntokenizer.size = 32001\ntokenizer.pad_id = 32000\n"
    [(_, violation)] = found(text)
    assert violation.severity is Severity.WARNING


def test_special_ids_of_a_tokenizer_that_is_too_large_are_not_told_again():
    text = "[hf]\nvocab_size = 32000\ntokenizer.size = 32010\ntokenizer.eos_id = 32009\ngeneration.eos_ids = [32009]\n"
    assert codes(text) == ["DX820"]


def test_the_tokenizer_of_one_model_is_not_held_against_another():
    text = """
    [hf]
    hidden_size = 4096
    num_layers = 32
    num_heads = 32
    vocab_size = 128256
    tokenizer.size = 128256
    [engine]
    hidden_size = 1024
    num_layers = 12
    num_heads = 16
    vocab_size = 32000
    """
    assert codes(text) == []


# The ids at which generation stops are the tokenizer's and all of generation_config.json together.
@pytest.mark.parametrize(
    ("eos_id", "generation", "turn_end_id", "expected"),
    [
        (128009, [128001, 128008, 128009], 128009, []),
        (128001, [128001, 128008, 128009], 128009, []),  # Llama 3.1 with the base model's tokenizer
        (128001, [128001], 128009, ["DX502"]),
        (151645, [151643], 151645, []),
        (151643, [151643], 151645, ["DX502"]),
    ],
)
def test_a_turn_ends_where_generation_stops(eos_id, generation, turn_end_id, expected):
    text = (
        f"[hf]\ntokenizer.eos_id = {eos_id}\ntokenizer.turn_end_id = {turn_end_id}\n"
        f'tokenizer.turn_end = "<|end|>"\ngeneration.eos_ids = {generation}\n'
    )
    assert codes(text) == expected


def test_triton_knows_the_tokenizers_end_token_only():
    text = """
    [hf]
    tokenizer.eos_id = 1
    tokenizer.turn_end = "<end_of_turn>"
    tokenizer.turn_end_id = 107
    generation.eos_ids = [1, 107]
    [triton]
    triton.models = ["tensorrt_llm"]
    """
    assert codes(text) == []  # its LLM API flow has no preprocessing and reads generation_config.json
    assert codes(text.replace('["tensorrt_llm"]', '["preprocessing", "tensorrt_llm"]')) == ["DX502"]


def test_the_first_gemma_ends_otherwise_and_says_so_nowhere():
    text = """
    [hf]
    model_type = "gemma"
    tokenizer.eos_id = 1
    tokenizer.turn_end = "<end_of_turn>"
    tokenizer.turn_end_id = 107
    generation.eos_ids = [1]
    """
    assert codes(text) == []


# Whether templated text is sent is the client's affair, so special tokens that are added are no finding.
def test_a_beginning_nobody_writes_is_told():
    text = """
    [hf]
    tokenizer.bos_token = "<s>"
    tokenizer.adds_bos = true
    tokenizer.chat_template = "[INST] {{ messages[0].content }} [/INST]"
    [triton]
    triton.add_special_tokens = false
    """
    assert codes(text) == ["DX501"]
    assert codes(text.replace("[INST] {{", "<s>[INST] {{")) == []
    assert codes(text.replace("false", "true")) == []


# Every Llama's generation_config.json asks for sampling; it is told in the overview, not as a finding.
def test_sampling_that_is_asked_for_is_no_finding():
    text = "[hf]\ngeneration.do_sample = true\ngeneration.temperature = 0.6\ngeneration.top_p = 0.9\n"
    assert codes(text + '[command]\nruntime.command = "trtllm-serve"\n') == []


def test_a_template_on_the_command_line_is_a_template():
    text = '[hf]\ntokenizer.class = "LlamaTokenizer"\n[command]\nruntime.model = "/models/x-chat"\n'
    assert codes(text) == ["DX126"]
    assert codes(text + 'option.chat_template = "chat.jinja"\n') == []
