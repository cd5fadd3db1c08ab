"""Hugging Face folders are loaded whole or refused with the reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from trtdx.engines.generate import generate_tokens
from trtdx.errors import InputError, UnknownNameError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
from support.torch_models import ROWS, decoder, generated, tokens_of  # noqa: E402
from trtdx.engines.torch.engine import TorchEngine  # noqa: E402
from trtdx.engines.torch.hugging_face import load_model, load_outline  # noqa: E402


@pytest.fixture(scope="module")
def llama():
    return decoder("llama")


@pytest.fixture(scope="module")
def saved(llama, tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama") / "model"
    llama.save_pretrained(folder)
    return folder


def test_a_folder_gives_what_the_model_gives(llama, saved):
    with TorchEngine(saved, "norm", sink=lambda seen: None, attention="eager", threads=1) as engine:
        assert tokens_of(generate_tokens(engine, ROWS, 4)) == generated(llama, ROWS, 4)
        told = engine.details
        assert (told["dtype"], told["attention"], told["device"], told["threads"]) == (
            "float32",
            "eager",
            "cpu",
            1,
        )
        assert told["model"] == str(saved)
        assert told["torch"] == torch.__version__
    assert tokens_of(generate_tokens(engine, ROWS, 2)) == generated(llama, ROWS, 2)  # loaded again
    assert load_model(saved, dtype="bfloat16").model.dtype == torch.bfloat16
    assert not load_model(saved).model.training


def changed_weights(change):
    def act(folder):
        weights = safetensors.load_file(folder / "model.safetensors")
        change(weights)
        safetensors.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return act


def changed_config(**more):
    def act(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | more))

    return act


def cut(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-100])


def shards(folder):
    model = load_model(folder).model
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    sorted(folder.glob("*.safetensors"))[1].unlink()


REMOTE = {"AutoConfig": "x.Config", "AutoModelForCausalLM": "x.Model"}
BROKEN = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "config no JSON": (lambda folder: (folder / "config.json").write_text("{"), "config.json is not JSON"),
    "no type": (lambda folder: (folder / "config.json").write_text("{}"), "does not say its model_type"),
    "unknown": (changed_config(model_type="nope"), "model type `nope` but Transformers does not recognize"),
    "own code": (
        changed_config(model_type="nope", auto_map=REMOTE),
        "needs code of its own, which is not run",
    ),
    "encoder": (
        changed_config(model_type="t5"),
        "is not a causal language model: transformers has none of type t5",
    ),
    "too many layers": (changed_config(num_hidden_layers=10**8), "says num_hidden_layers is 100000000"),
    "bad value": (
        changed_config(num_attention_heads=5),
        "cannot be loaded: .*multiple of the number of attention",
    ),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "holds no weights"),
    "cut off": (cut, r"model\.safetensors .*(cut|bytes)"),
    "shard": (shards, r"lacks 1 file of \d+ that model.safetensors.index.json names: model-00002-of"),
    "missing": (
        changed_weights(lambda all_: all_.pop("model.norm.weight")),
        r"1 weight of LlamaForCausalLM not in .*: model\.norm\.weight",
    ),
    "size": (
        changed_weights(lambda all_: all_.update({"model.norm.weight": torch.ones(3)})),
        r"another size than config.json says: model.norm.weight is \[3\] and should be \[32\]",
    ),
    "unexpected": (
        changed_weights(lambda all_: all_.update(extra=torch.ones(1))),
        "1 weight in .* not wanted by LlamaForCausalLM: extra",
    ),
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", BROKEN)
def test_folders_that_cannot_be_loaded_as_they_are(saved, tmp_path, name, capfd):
    change, told = BROKEN[name]
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    change(folder)
    capfd.readouterr()
    with pytest.raises(InputError, match=told):
        load_model(folder)
    assert capfd.readouterr() == ("", "")


def test_weights_nobody_wants_are_noted_if_they_may_be_left_out(saved, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    BROKEN["unexpected"][0](folder)
    assert "not wanted by LlamaForCausalLM: extra" in TorchEngine(folder, strict=False).details["notes"][0]


def test_folders_that_are_not_there(saved, tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        load_model(tmp_path / "absent")
    with pytest.raises(InputError, match="is a file"):
        load_model(saved / "config.json")
    with pytest.raises(UnknownNameError, match="no type to compute in is called 'fp32'"):
        load_model(saved, dtype="fp32")
    with pytest.raises(InputError, match="cannot be loaded"):
        load_model(saved, attention="nope")


def test_torch_files_are_read_without_running_code_in_them(llama, saved, tmp_path):
    shutil.copy(saved / "config.json", tmp_path)
    torch.save(llama.state_dict(), tmp_path / "pytorch_model.bin")
    engine = TorchEngine(tmp_path)
    assert tokens_of(generate_tokens(engine, ROWS, 2)) == generated(llama, ROWS, 2)
    assert "torch files" in engine.details["notes"][0]

    class Evil:
        def __reduce__(self):
            return (Path(tmp_path / "harm").touch, ())

    torch.save(llama.state_dict() | {"evil": Evil()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="hold more than weights; code in them is not run"):
        load_model(tmp_path)
    assert not (tmp_path / "harm").exists()


def test_a_model_of_another_kind_is_told_what_to_do_with_it(tmp_path):
    config = transformers.BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="6 weights of BertLMHeadModel not in") as raised:
        load_model(tmp_path)
    assert raised.value.fix.startswith("config.json says that it is a BertModel, which does not generate")


def test_the_outline_of_a_folder_has_its_places_and_no_weights(llama, saved):
    from trtdx.engines.torch.hooks import module_places

    made = load_outline(saved)
    assert module_places(made) == module_places(llama)
    assert {each.device.type for each in made.parameters()} == {"meta"}
