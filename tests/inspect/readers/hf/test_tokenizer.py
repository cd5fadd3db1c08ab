"""Tokenizer files of every kind give the highest id, the special tokens and what the chat template says."""

from __future__ import annotations

import base64
import io
import json
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.make_hf import CHATML, make_real_tokenizers, make_tokenizer, write_json
from trtdx.host import RealHost, RecordedHost
from trtdx.inspect.readers import read_artifact
from trtdx.inspect.readers.hf.model_folder import TOKENIZER_READER, read_tokenizer_folder
from trtdx.inspect.readers.hf.tokenizer import TOKENIZER_FILES

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9085657\n"


def facts_of(folder):
    return {name: fact.value for name, fact in read_tokenizer_folder(RealHost(), str(folder)).facts.items()}


def recorded(files):
    host = RecordedHost({f"t/{name}": data for name, data in files.items()})
    return {name: fact.value for name, fact in read_tokenizer_folder(host, "t").facts.items()}


@pytest.fixture(scope="session")
def real_tokenizers(tmp_path_factory):
    pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make_real_tokenizers(tmp_path_factory.mktemp("tokenizers"))


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
def test_a_real_tokenizer_has_as_many_ids_as_its_library_says(real_tokenizers, kind):
    folder, length = real_tokenizers[kind]
    assert facts_of(folder)["tokenizer.size"] == length


def test_special_tokens_of_a_real_tokenizer_have_their_ids(real_tokenizers):
    facts = facts_of(real_tokenizers["bpe"][0])
    assert (facts["tokenizer.eos_token"], facts["tokenizer.eos_id"]) == ("<|im_end|>", 2)
    assert (facts["tokenizer.pad_token"], facts["tokenizer.pad_id"]) == ("<|endoftext|>", 0)
    assert "tokenizer.bos_token" not in facts
    assert facts["tokenizer.model_max_length"] == 4096


def test_a_real_chat_template_lies_in_a_file_of_its_own(real_tokenizers):
    facts = facts_of(real_tokenizers["bpe"][0])
    assert facts["tokenizer.chat_template"] == CHATML
    assert facts["tokenizer.template_source"] == "chat_template.jinja"
    assert (facts["tokenizer.turn_end"], facts["tokenizer.turn_end_id"]) == ("<|im_end|>", 2)


def test_the_post_processor_says_whether_a_text_begins_with_bos(real_tokenizers):
    assert facts_of(real_tokenizers["unigram"][0])["tokenizer.adds_bos"] is True


def test_a_llama_3_tokenizer_is_read_whole(tmp_path):
    artifact = read_artifact(RealHost(), str(make_tokenizer(tmp_path)))
    facts = {name: fact.value for name, fact in artifact.facts.items()}
    assert artifact.kind == "tokenizer"
    assert facts["tokenizer.size"] == 2048
    assert facts["tokenizer.eos_id"] == facts["tokenizer.turn_end_id"] == 1801
    assert facts["tokenizer.bos_id"] == 1792
    assert facts["tokenizer.adds_bos"] is True
    assert facts["tokenizer.turn_end"] == "<|eot_id|>"
    assert "tokenizer.template_unknown_tokens" not in facts
    assert artifact.facts["tokenizer.eos_token"].where == f"{tmp_path}/tokenizer_config.json: eos_token"
    assert artifact.unread == ()


def test_the_generated_tokenizer_is_one_for_transformers_too(tmp_path):
    transformers = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(make_tokenizer(tmp_path)))
    assert len(tokenizer) == 2048
    assert tokenizer("ab").input_ids[0] == tokenizer.bos_token_id == 1792


def test_tokens_added_beside_the_vocabulary_count(tmp_path):
    make_tokenizer(tmp_path, 512, {"added_tokens_decoder": {"600": {"content": "<extra>"}}})
    assert facts_of(tmp_path)["tokenizer.size"] == 601


def sentencepiece_model(**options):
    spm = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    texts = iter(["the quick brown fox jumps over the lazy dog"] * 20)
    spm.SentencePieceTrainer.train(
        sentence_iterator=texts, model_writer=model, vocab_size=50, model_type="bpe", minloglevel=2, **options
    )
    return model.getvalue(), spm.SentencePieceProcessor(model_proto=model.getvalue())


def test_a_sentencepiece_model_is_counted_by_its_pieces():
    data, processor = sentencepiece_model(user_defined_symbols=["<|turn|>"])
    config = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>"},
        "add_bos_token": True,
        "tokenizer_class": "LlamaTokenizer",
    }
    facts = recorded({"tokenizer.model": data, "tokenizer_config.json": json.dumps(config).encode()})
    assert facts["tokenizer.size"] == processor.get_piece_size()
    assert (facts["tokenizer.bos_id"], facts["tokenizer.eos_id"]) == (processor.bos_id(), processor.eos_id())
    assert facts["tokenizer.adds_bos"] is True
    assert facts["tokenizer.class"] == "LlamaTokenizer"


def test_a_cut_sentencepiece_model_is_told():
    data, _ = sentencepiece_model()
    assert "not a SentencePiece model" in recorded({"tokenizer.model": data[:-3]})["unparsed"][0]


def test_a_tiktoken_file_is_counted_by_its_ranks():
    lines = b"".join(base64.b64encode(bytes([at])) + b" %d\n" % at for at in range(256))
    assert recorded({"qwen.tiktoken": lines, "tokenizer_config.json": b"{}"})["tokenizer.size"] == 256
    assert recorded({"tokenizer.model": lines})["tokenizer.size"] == 256


def test_older_vocabularies_are_read():
    assert recorded({"vocab.json": b'{"a": 0, "b": 7}', "merges.txt": b"#"})["tokenizer.size"] == 8
    assert recorded({"vocab.txt": b"[PAD]\n[UNK]\nthe\n"})["tokenizer.size"] == 3
    tekken = {"config": {"default_vocab_size": 131072}}
    assert recorded({"tekken.json": json.dumps(tekken).encode()})["tokenizer.size"] == 131072
    added = recorded({"vocab.json": b'{"a": 0}', "added_tokens.json": b'{"<x>": 5}'})
    assert added["tokenizer.size"] == 6


def test_no_limit_on_the_length_is_no_limit():
    config = b'{"model_max_length": 1000000000000000019884624838656}'
    assert "tokenizer.model_max_length" not in recorded({"tokenizer_config.json": config})


@pytest.mark.parametrize(
    ("config", "adds"),
    [
        ({"add_bos_token": True, "tokenizer_class": "LlamaTokenizer"}, True),
        ({"add_bos_token": False, "tokenizer_class": "LlamaTokenizerFast"}, False),
        ({"add_bos_token": False, "tokenizer_class": "PreTrainedTokenizerFast"}, None),  # they contradict
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, True),
    ],
)
def test_the_class_decides_whose_word_counts(tmp_path, config, adds):
    make_tokenizer(tmp_path, 512, config)
    assert facts_of(tmp_path).get("tokenizer.adds_bos") is adds


TURNS = "{% for message in messages %}%s{% endfor %}"
ROLE = "{% if message['role'] == 'user' %}{{ '<|user|>' + message['content'] }}{% elif message['role'] == 'assistant' %}%s{% endif %}"
KNOWN = {
    "<|user|>": 4,
    "<|end|>": 5,
    "<|eot|>": 6,
    "<end_of_turn>": 7,
    "</s>": 8,
    "<|im_start|>": 9,
    "<|im_end|>": 10,
}


def template_facts(template, known=KNOWN, **config):
    tokenizer = {
        "model": {"type": "BPE", "vocab": {"a": 0}},
        "added_tokens": [{"id": at, "content": text} for text, at in known.items()],
    }
    config = {"chat_template": template, "eos_token": "</s>"} | config
    return recorded(
        {
            "tokenizer.json": json.dumps(tokenizer).encode(),
            "tokenizer_config.json": json.dumps(config).encode(),
        }
    )


ENDINGS = [
    (CHATML, "<|im_end|>"),
    (TURNS.replace("%s", ROLE.replace("%s", "{{ message['content'] + '<|end|>' + '\\n' }}")), "<|end|>"),
    (TURNS.replace("%s", ROLE.replace("%s", "{{ ' ' + message['content'] | trim + eos_token }}")), "</s>"),
    (TURNS.replace("%s", "{{ message['content'] | trim }}<end_of_turn>\n"), "<end_of_turn>"),
    # the end is written after the branches
    (TURNS.replace("%s", ROLE.replace("%s", "{{ message['content'] }}") + "{{- '<|eot|>' -}}"), "<|eot|>"),
    # tool calls end otherwise, and a plain answer does not
    (TURNS.replace("%s", "{%- if message.tool_calls is defined %}{{ '<|end|>' }}{%- else %}{{ message.content + '<|eot|>' }}{%- endif %}"), "<|eot|>"),
    (TURNS.replace("%s", "{%- if not (message.role == 'tool' or 'tool_calls' in message) %}{{ message.content + '<|eot|>' }}{%- elif message.role == 'tool' %}{{ '<|end|>' }}{%- endif %}"), "<|eot|>"),
    # the prompt for the next answer is no end
    (TURNS.replace("%s", "{{ message.content + '<|end|>' }}{% if loop.last and add_generation_prompt %}{{ '<|user|>' }}{% endif %}"), "<|end|>"),
    # the last turn ends otherwise than the others: not told
    (TURNS.replace("%s", "{{ message.content }}{% if loop.last %}{{ '<|end|>' }}{% else %}{{ '<|eot|>' }}{% endif %}"), None),
    (TURNS.replace("%s", "{{ '<|user|>' + message.content }}"), None),
    (TURNS.replace("%s", "{{ message.content + ('<|end|>' if loop.last else '<|eot|>') }}"), None),
    ("{{ messages[0].content }}<|end|>", None),
    ("{% for message in messages %}{{ message.content }}<|end|>", None),
    ("{% filter upper %}x{% endfilter %}", None),
    ("{% set eos_token = '[e]' %}" + TURNS.replace("%s", "{{ message.content + eos_token }}"), None),
]  # fmt: skip


@pytest.mark.parametrize(("template", "end"), ENDINGS)
def test_the_end_of_a_turn_is_told_where_all_ways_agree(template, end):
    assert template_facts(template).get("tokenizer.turn_end") == end


@pytest.mark.parametrize(("template", "end"), [case for case in ENDINGS if case[1]])
def test_the_end_that_is_told_is_what_jinja_writes_last(template, end):
    environment = pytest.importorskip("jinja2.sandbox").SandboxedEnvironment()
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "an answer"}]
    written = environment.from_string(template).render(messages=messages, eos_token="</s>")
    assert written.rstrip().endswith(end)


@pytest.mark.parametrize(
    ("written", "unknown"),
    [
        ("{{ '<|user|>' + message.content + '<|end|>' }}", None),
        ("{{ '<|assistant|>' + message.content + '<|end|>' }}", ["<|assistant|>"]),
        ("<|assistant|>{{ message.content }}", ["<|assistant|>"]),
        ("{{ '<\uff5cUser\uff5c>' + message.content }}", ["<\uff5cUser\uff5c>"]),
        ("{{ '<|' + message.role + '|>' }}", None),  # built from parts
        ("{{ '[INST] ' + message.content + ' [/INST]' }}", None),  # plain text in Llama 2
        ("{{ '<tool_call>' + message.content }}", None),  # may be plain text
        ("{{ bos_token + eos_token }}", None),
        ("{# <|comment|> #}{{ message.content }}", None),
        ("{% if '<|marker|>' in message.content %}{{ message.content }}{% endif %}", None),
        ("{{ message.content.split('<|marker|>')[-1] }}", None),
        ("{{ raise_exception('do not write <|marker|>') }}", None),
    ],
)
def test_tokens_the_tokenizer_has_not_are_found_without_false_alarms(written, unknown):
    facts = template_facts(TURNS.replace("%s", written))
    assert facts.get("tokenizer.template_unknown_tokens") == unknown


def test_a_tokenizer_without_such_tokens_was_trained_on_them_as_text():
    facts = template_facts(TURNS.replace("%s", "{{ '<|user|>' + message.content }}"), {"<s>": 1, "</s>": 2})
    assert "tokenizer.template_unknown_tokens" not in facts


def test_of_several_templates_the_default_counts():
    several = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHATML}]
    assert template_facts(several)["tokenizer.chat_template"] == CHATML
    assert template_facts([{"name": "rag", "template": "y"}])["tokenizer.chat_template"] == "y"
    assert "tokenizer.chat_template" not in template_facts([7, {"name": "a"}])


def test_a_template_file_comes_before_the_configuration(tmp_path):
    make_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    facts = facts_of(tmp_path)
    assert facts["tokenizer.chat_template"] == CHATML
    # Llama's tokenizer does not have ChatML's tokens
    assert facts["tokenizer.template_unknown_tokens"] == ["<|im_start|>", "<|im_end|>"]


def test_a_processor_keeps_its_template_in_a_json_file(tmp_path):
    make_tokenizer(tmp_path, changes={"chat_template": None})
    write_json(tmp_path / "chat_template.json", {"chat_template": CHATML})
    assert facts_of(tmp_path)["tokenizer.template_source"] == "chat_template.json"


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("tokenizer.json", POINTER, "Git-LFS pointer"),
        ("tokenizer.model", POINTER, "Git-LFS pointer"),
        ("tokenizer.json", b"", "is empty"),
        ("tokenizer.json", b'{"model": {"vocab": {"a": "b"}}}', "not what such a file holds"),
        ("tokenizer.json", b'{"post_processor":' + b"[" * 100_000, "nested too deeply"),
        ("tokenizer_config.json", b"\xff\xfe{\x00", "not JSON"),
        ("tokenizer.model", b"\x0a\xff\xff\xff\xff\xff", "not a SentencePiece model"),
    ],
)
def test_files_that_cannot_be_parsed_are_told(name, data, words):
    (problem,) = recorded({name: data})["unparsed"]
    assert problem.startswith(f"{name}: ")
    assert words in problem


def test_a_directory_with_a_model_is_not_a_tokenizer(tmp_path):
    make_tokenizer(tmp_path)
    write_json(tmp_path / "config.json", {"model_type": "llama"})
    assert read_artifact(RealHost(), str(tmp_path)).kind == "hf"


words = st.sampled_from(
    ["{%", "%}", "{{", "}}", "{#", "#}", "if ", "else", "endif", "for message in messages", "endfor", "'", '"', "\\", "(", ")",
     "not ", "and ", "or ", "message.role == 'assistant'", "<|x|>", "eos_token", " ", "\n", "set x", "macro f()", "[", "'a'"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(words, max_size=40).map("".join) | st.text(max_size=200))
def test_any_template_is_read_without_an_exception(template):
    assert template_facts(template) is not None


@pytest.mark.heavy
@pytest.mark.parametrize(
    "template",
    ["{%" * 150_000, "{{'" * 100_000, "{{ " + "'\\'" * 60_000 + " }}", "{% if " + "(" * 90_000 + " %}{% endif %}",
     "{% if a %}" * 40_000, "{% for m in messages %}" + "{% if a or b %}x{% endif %}" * 10_000 + "{% endfor %}", "<|" * 190_000,
     "{% for m in messages %}{{ " + "'a' + " * 60_000 + "'b' }}{% endfor %}", "{{ " + "1" * 9_000 + " }}"],
)  # fmt: skip
def test_a_hostile_template_comes_to_an_end(template):
    assert template_facts(template) is not None


@pytest.mark.heavy
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.sampled_from([*TOKENIZER_FILES, "x.tiktoken"]),
        st.binary(max_size=80)
        | st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda each: st.lists(each, max_size=3)
            | st.dictionaries(
                st.sampled_from(["model", "vocab", "added_tokens", "content", "id", "chat_template", "bos_token", "eos_token",
                                 "added_tokens_decoder", "post_processor", "type", "single", "add_bos_token", "7", "config"]),
                each, max_size=4),
            max_leaves=12,
        ).map(lambda value: json.dumps(value).encode()),
        min_size=1,
        max_size=4,
    )
)  # fmt: skip
def test_any_bytes_in_any_file_are_read_without_an_exception(files):
    recorded(files)


def test_the_reader_is_registered():
    assert TOKENIZER_READER.kind == "tokenizer"
