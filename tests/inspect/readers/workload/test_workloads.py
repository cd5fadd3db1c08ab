"""Kubernetes manifests, compose files, Dockerfiles and job scripts: healthy ones are left alone, one fault is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.make_engine import make_engine
from support.make_hf import make_hf_model
from trtdx.host import RealHost
from trtdx.inspect.facts.machine import machine_from_flags
from trtdx.inspect.readers import read_artifact
from trtdx.inspect.run import InspectQuestion, collect_deployment, inspect_artifacts
from trtdx.knowledge.load import load_book
from trtdx.knowledge.versions import release_of_image

SAMPLES = Path(__file__).parent / "samples"


@pytest.fixture(scope="module")
def book():
    return load_book(RealHost())


def findings(book, *paths, **machine):
    question = InspectQuestion(paths=tuple(map(str, paths)), machine=machine_from_flags(**machine))
    return inspect_artifacts(RealHost(), question, book).findings


def codes(book, *paths, **machine):
    return [(finding.code, finding.severity.value) for finding in findings(book, *paths, **machine)]


@pytest.mark.parametrize("sample", sorted(SAMPLES.iterdir()), ids=lambda path: path.name)
def test_nothing_is_said_of_a_healthy_one(book, sample):
    assert codes(book, sample) == []


FAULTS = [
    ("deployment.yaml", "nvidia.com/gpu: 4", "nvidia.com/gpu: 2", "DX467"),
    ("deployment.yaml", "- {name: shm, mountPath: /dev/shm}\n", "", "DX400"),
    ("deployment.yaml", "              nvidia.com/gpu: 4\n", "", "DX568"),
    ("deployment.yaml", '"--host", "0.0.0.0", ', "", "DX569"),
    ("deployment.yaml", '"--port", "8000"', '"--port", "8080"', "DX570"),
    ("deployment.yaml", 'command: ["trtllm-serve"]', 'command: ["trtllm-serve model --tp_size 4"]', "DX571"),
    ("deployment.yaml", '"meta-llama/Llama-3.3-70B-Instruct"', '"$MODEL"', "DX571"),
    ("deployment.yaml", '"--tp_size", "4"', '"--tp_size", 4', "DX572"),
    ("deployment.yaml", 'value: "INFO"', "value: 1", "DX572"),
    ("deployment.yaml", "limits:\n", "requests:\n", "DX572"),
    ("deployment.yaml", "--tp_size", "--tensor-parallel-size", "DX246"),
    ("deployment-bash.yaml", "free_gpu_memory_fraction: 0.85", "free_gpu_memory_fraction: 1.85", "DX355"),
    ("configmap.yaml", "max_batch_size: 64", "guided_decoding_backend: outlines", "DX249"),
    ("lws.yaml", "-np 16", "-np 8", "DX210"),
    ("lws.yaml", 'nvidia.com/gpu: "8"', 'nvidia.com/gpu: "4"', "DX467"),
    ("mpijob.yaml", "replicas: 2", "replicas: 1", "DX467"),
    ("compose.yaml", "count: 2", "count: 1", "DX467"),
    (
        "triton-compose.yaml",
        "gpus: all",
        "environment: {CUDA_VISIBLE_DEVICES: '0'}\n    runtime: nvidia",
        "DX467",
    ),
    ("compose.yaml", "    ipc: host\n", "", "DX400"),
    ("compose-ids.yml", '["1", "2", "3", "4"]', '["1", "2"]', "DX467"),
    ("disagg-compose.yaml", '"1,2"', '"1"', "DX467"),
    ("Dockerfile.09", '"--host", "0.0.0.0", ', "", "DX569"),
    ("Dockerfile.09", '"--host"', '"--max_sequence_length", "8", "--host"', "DX246"),
    ("Dockerfile.10", "--port", "--tensor_parallel", "DX246"),
    ("serve.sbatch", "#SBATCH --ntasks=16\n#SBATCH --ntasks-per-node=8", "#SBATCH --ntasks=8", "DX210"),
    ("serve.sbatch", " --mpi=pmix", "", "DX442"),
    ("serve.sbatch", "gpus-per-node=8", "gpus-per-node=4", "DX467"),
    ("bench.sbatch", "--tp 4", "--tp 8", "DX210"),
    ("docker.sh", "--ipc host ", "", "DX400"),
    ("docker.sh", "--gpus all ", "", "DX568"),
    ("docker-device.sh", "2,3", "2", "DX467"),
    ("docker-device.sh", "--host 0.0.0.0 ", "", "DX569"),
    ("docker-device.sh", "-p 9000:9000", "-p 9000:8000", "DX570"),
]


@pytest.mark.parametrize(("sample", "old", "new", "code"), FAULTS)
def test_one_fault_is_found_first_and_is_an_error(book, tmp_path, sample, old, new, code):
    text = (SAMPLES / sample).read_text()
    assert old in text
    path = tmp_path / sample
    path.write_text(text.replace(old, new))
    assert codes(book, path)[:1] == [(code, "error")]


def test_evidence_names_the_line_of_the_flag_and_of_the_limit(book, tmp_path):
    path = tmp_path / "deployment.yaml"
    path.write_text((SAMPLES / "deployment.yaml").read_text().replace("gpu: 4", "gpu: 2"))
    lines = path.read_text().splitlines()
    places = [finding.where for finding in findings(book, path)[0].evidence]
    numbers = [int(where.removeprefix(f"{path}:").partition(":")[0]) for where in places]
    assert ["--tp_size" in lines[numbers[0] - 1], "nvidia.com/gpu" in lines[numbers[1] - 1]] == [True, True]


def test_containers_of_one_file_are_not_held_against_each_other():
    deployment, _ = collect_deployment(RealHost(), InspectQuestion(paths=(str(SAMPLES / "compose-ids.yml"),)))
    units = deployment.split_units()
    assert [[artifact.kind for artifact in unit.artifacts] for unit in units] == [["command", "machine"]] * 2
    counts = [unit.first_of("machine").integer("gpu.count") for unit in units]
    assert counts == [1, 4]


def test_a_model_that_is_mounted_is_read_where_it_lies(book, tmp_path):
    make_hf_model(tmp_path / "models" / "llama", num_hidden_layers=4, vocab_size=1024)
    text = (SAMPLES / "compose.yaml").read_text().replace("meta-llama/Llama-3.1-8B-Instruct", "/models/llama")
    text = text.replace("- ~/.cache/huggingface:/root/.cache/huggingface", "- ./models:/models:ro")
    path = tmp_path / "compose.yaml"
    path.write_text(text)
    assert codes(book, path) == []
    path.write_text(text.replace("--tp_size 2", "--tp_size 3").replace("count: 2", "count: 3"))
    assert codes(book, path) == [("DX096", "error")]
    path.write_text(text.replace("/models/llama", "/models/lama"))
    assert codes(book, path) == [("DX880", "error")]


def test_the_release_of_an_image_is_held_against_the_engine(book, tmp_path):
    engine = make_engine(tmp_path / "engine")
    script = tmp_path / "run.sh"
    command = "docker run --gpus all --ipc=host nvcr.io/nvidia/{} mpirun -n 1 python3 run.py --engine_dir /e\n"
    script.write_text(command.format("tensorrt-llm/release:1.2.1"))
    assert codes(book, script, engine) == []
    script.write_text(command.format("tritonserver:24.08-trtllm-python-py3"))
    assert codes(book, script, engine)[0] == ("DX200", "error")
    script.write_text(command.format("tensorrt-llm/release:1.3.0rc22"))
    assert codes(book, script, engine)[0] == ("DX247", "error")


def test_what_is_said_of_the_machine_goes_before_the_image(book, tmp_path):
    path = tmp_path / "Dockerfile"
    path.write_text(
        'FROM nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc22\nCMD ["trtllm-build", "--checkpoint_dir", "c"]\n'
    )
    assert codes(book, path) == [("DX247", "error")]
    assert codes(book, path, runtime="1.2.1") == []


def test_a_value_that_stands_elsewhere_is_not_known_and_no_fault(book, tmp_path):
    compose = (SAMPLES / "compose.yaml").read_text().replace("--tp_size 2", "--tp_size ${TP} --max_batch_size ${B:-8}")
    manifest = (SAMPLES / "deployment.yaml").read_text().replace("meta-llama/Llama-3.3-70B-Instruct", "$(HF_TOKEN)")
    manifest = manifest.replace('"0.0.0.0"', '"$(POD_IP)"')
    for name, text in (("compose.yaml", compose), ("deployment.yaml", manifest)):
        path = tmp_path / name
        path.write_text(text)
        assert codes(book, path) == []
    command = read_artifact(RealHost(), str(tmp_path / "compose.yaml"))
    assert (command.get("tp_size"), command.get("max_batch_size")) == (None, 8)


def test_a_cmd_behind_an_entrypoint_in_text_form_is_told(book, tmp_path):
    path = tmp_path / "Dockerfile"
    base = "FROM nvcr.io/nvidia/tensorrt-llm/release:1.2.1\n"
    path.write_text(f'{base}ENTRYPOINT trtllm-serve m --host 0.0.0.0\nCMD ["--tp_size", "2"]\n')
    assert codes(book, path) == [("DX571", "error")]
    path.write_text(f'{base}ENTRYPOINT ["trtllm-serve", "m", "--host", "0.0.0.0"]\nCMD ["--tp_size", "2"]\n')
    assert codes(book, path) == []


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("nvcr.io/nvidia/tensorrt-llm/release:1.2.1", "1.2.1"),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc22", "1.3.0rc22"),
        ("nvcr.io/nvidia/tritonserver:25.06-trtllm-python-py3", "0.20.0"),
        ("nvcr.io/nvidia/tritonserver:25.06-py3", ""),
        ("registry.local:5000/trtllm", ""),
        ("somebody/trtllm:1.2", ""),
    ],
)
def test_images_of_nvidia_say_their_release(image, release):
    assert release_of_image(image) == release


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"apiVersion: v1\nkind: Pod\n{BOMB}", "expands to more than"),
        ("apiVersion: v1\nkind: Pod\nspec: " + "{a: " * 60 + "1" + "}" * 60, "nested too deeply"),
        ("apiVersion: v1\nkind: Pod\nspec: &s\n  containers: [*s]\n", "names nothing that is complete"),
        ("{{- if .x }}\napiVersion: v1\nkind: Pod\nspec: {{ toYaml .y }}\n{{- end }}\n", "helm template"),
        ("apiVersion: v1\nkind: Pod\nspec:\n  containers: [5, {name: []}, {args: {a: b}, env: [1], ports: x}]\n", "no container"),
        ("services:\n  a: 5\n  b: {command: [[trtllm-serve]], ports: 3, volumes: {x: y}}\n", "no container"),
    ],
)  # fmt: skip
def test_a_hostile_or_odd_file_gets_a_partial_answer(tmp_path, text, words):
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    assert words in " ".join(read_artifact(RealHost(), str(path)).unread)


def test_what_stands_before_a_broken_document_is_still_looked_at(book, tmp_path):
    path = tmp_path / "two.yaml"
    good = (SAMPLES / "deployment.yaml").read_text().replace("gpu: 4", "gpu: 2")
    path.write_text(f"{good}---\nkind: [\n")
    assert sorted(codes(book, path)) == [("DX249", "error"), ("DX467", "error")]


SERVICE = """---
apiVersion: v1
kind: Service
metadata: {name: llm}
spec:
  selector: {app: llm}
  ports: [{port: 80, targetPort: 8000}]
"""
POD = """apiVersion: v1
kind: Pod
metadata: {name: llm, labels: {app: llm}}
spec:
  containers:
  - name: serve
    image: nvcr.io/nvidia/tensorrt-llm/release:1.2.1
    command: [trtllm-serve, Qwen/Qwen3-8B, --host, 0.0.0.0]
    ports: [{containerPort: 8000}]
    readinessProbe: {httpGet: {path: /health, port: 8000}}
    resources: {limits: {nvidia.com/gpu: 1}}
"""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("targetPort: 8000", "targetPort: 8080", "Service llm"),
        ("health, port: 8000", "health, port: 9000", "readinessProbe"),
    ],
)
def test_whoever_calls_a_port_calls_the_one_that_is_served(book, tmp_path, old, new, told):
    path = tmp_path / "pod.yaml"
    path.write_text(POD + SERVICE)
    assert codes(book, path) == []
    path.write_text((POD + SERVICE).replace(old, new))
    [finding] = findings(book, path)
    assert (finding.code, told in finding.message) == ("DX570", True)


def test_a_file_that_is_copied_into_an_image_is_read_where_it_lies(book, tmp_path):
    (tmp_path / "mine.yaml").write_text("kv_cache_config:\n  free_gpu_mem_fraction: 0.8\n")
    text = (SAMPLES / "Dockerfile.09").read_text().replace("COPY extra.yaml", "COPY mine.yaml")
    (tmp_path / "Dockerfile").write_text(text)
    assert codes(book, tmp_path / "Dockerfile") == [("DX246", "error")]
    (tmp_path / "mine.yaml").write_text("kv_cache_config:\n  free_gpu_memory_fraction: 0.8\n")
    assert codes(book, tmp_path / "Dockerfile") == []
