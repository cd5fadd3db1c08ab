from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtdx.redact import MARK, redact_hosts, redact_secrets

SECRETS = [
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345",
    "ghp_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
    "nvapi-AbCdEfGhIjKlMnOpQrStUvWxYz_0123",
    "AKIAABCDEFGHIJKLMNOP",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.s5c4",
    "sk-proj-abcdefghijklmnop1234",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    "around", ["{}", "token {} in use", "HF_TOKEN={}", '"key": "{}",', "https://host/x?token={}&y=1"]
)
def test_known_tokens_are_taken_out_wherever_they_stand(secret, around):
    assert secret not in redact_secrets(around.format(secret))


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("postgresql://admin:s3cr3t@db:5432/x", "s3cr3t"),
        ("Authorization: Bearer abcdefghijklmnop", "abcdefghijklmnop"),
        ('{"Authorization": "Basic dXNlcjpwYXNzd29yZA=="}', "dXNlcjpwYXNzd29yZA"),
        ("password=hunter22 next=1", "hunter22"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI"),
        ("docker run -e NGC_API_KEY=abcd1234efgh img", "abcd1234efgh"),
        ("curl --token abcd1234 http://x", "abcd1234"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKC\n-----END RSA PRIVATE KEY-----", "MIIEpAIBAAKC"),
        ("-----BEGIN PRIVATE KEY-----\nMIIEpAIBAAKC cut off", "MIIEpAIBAAKC"),
        ("A" * 64, "A" * 64),
        ("PGPASSWORD=hunter22 psql", "hunter22"),
        ("MYSQL_PWD=hunter22", "hunter22"),
        ("SLURM_JWT=abcd.efgh.ijkl", "abcd.efgh"),
        ("TOKEN=tok_abcdef123", "tok_abcdef123"),
        ("{'HUGGINGFACE_TOKEN': 'abc def ghi'}", "def"),
        ('"api_key": "one two three"', "two"),
        ("AccountKey=abcd1234==;x", "abcd1234"),
        ("postgres://bob:p@ssw0rd!@db/x", "ssw0rd"),
        ("https://user:pa/ss@host/x", "pa/ss"),
        ("git clone https://abcdefgh12345678@github.com/x/y", "abcdefgh12345678"),
        ("curl -u admin:letmein https://x", "letmein"),
        ("docker login -u '$oauthtoken' -p S3cretPw nvcr.io", "S3cretPw"),
        ("sshpass -p 'hunter22' ssh node1", "hunter22"),
        ("mysql -uroot -pS3cret9 db", "S3cret9"),
        ("redis-cli -h cache -a S3cret9 ping", "S3cret9"),
        ('{"auths":{"nvcr.io":{"auth":"dXNlcjpwYXNzd29yZA=="}}}', "dXNlcjpwYXNzd29yZA"),
        ("    client-key-data: LS0tLS1CRUdJTiBSU0Eg", "LS0tLS1CRUdJTiBSU0Eg"),
        ("machine hub login bob password s3cr3tX", "s3cr3tX"),
        ("db.lan:5432:prod:bob:s3cr3tX", "s3cr3tX"),
        ("the password is Hunter22!", "Hunter22"),
        ("bob@example.com:Hunter22x", "Hunter22x"),
        ("AKIAABCDEFGHIJKLMNOP wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEYab", "wJalrXUtnFEMI"),
        ("wandb: logging in with 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
        ("https://hooks.slack.com/services/T00000000/B00000000/abcdEFGH", "abcdEFGH"),
        ("kind: Secret\ndata:\n  plain: aHVudGVyMjI=\n", "aHVudGVyMjI"),
        ("[1,0]<out>: -----BEGIN RSA PRIVATE KEY-----\n[1,0]<out>: MIIEpAIBAAKCAQEA\n[1,0]<out>: abc=\n", "abc="),
        ("login with user admin and password 4dLaRa4Blx", "4dLaRa4Blx"),
        ("passphrase for key: jvMgYMvASkFD", "jvMgYMvASkFD"),
        ("echo cYzsGW4NGMFW | sudo -S nvidia-smi", "cYzsGW4NGMFW"),
        ("echo hHVmHonF40 | docker login -u bob --password-stdin", "hHVmHonF40"),
        ("ipmitool -H bmc -U admin -P VMAA0wUQMRFj power status", "VMAA0wUQMRFj"),
        ("<password>ELjRpdHe68</password>", "ELjRpdHe68"),
        ('{"Key":"DB_PASSWORD","Value":"chy7GKtab"}', "chy7GKtab"),
        ("password=SecretStr('IpzLkuX1Ukw1')", "IpzLkuX1Ukw1"),
        ("password: |\n  0O33X5z2jKMD", "0O33X5z2jKMD"),
        ("set -x HF_TOKEN BSV8vht7kTBX", "BSV8vht7kTBX"),
        ("kubectl create secret generic hf --from-literal=foo=Ur2JRg0v", "Ur2JRg0v"),
        ("rank 3: db.example.com:5432:prod:bob:FXP1BnmdLu", "FXP1BnmdLu"),
        ("AZURE_OPENAI_KEY=a4c9ce29eea9ed1dade243d54e3a2117", "a4c9ce29"),
        ("SSHPASS=PG4mJGrIoO sshpass -e ssh n", "PG4mJGrIoO"),
        ("Unseal Key 1: KC3xAdW6WAvWnyBu+h++2pA4Jcmzw0pHzKlaasC3/iHc", "KC3xAdW6"),
        ("root:$6$saltsalt$abcdefghijklmnopqrstuvwxyz012345", "abcdefghijkl"),
    ],
)
def test_secrets_by_their_place_are_taken_out(text, hidden):
    clean = redact_secrets(text)
    assert hidden not in clean
    assert MARK in clean


@pytest.mark.parametrize(
    "text",
    [
        "max_num_tokens=8192, tokens per block=32, tokenizer_dir=/models/llama",
        "[TensorRT-LLM][INFO] Number of tokens per block: 32.",
        "pad_token_id: 128001, bos_token=<s>, num_generated_tokens: 4096, eos_token='</s>'",
        "docker pull http://registry:5000/team/image@sha256:abc and pip install git+https://github.com/o/r@v1",
        "Error Code 2: Internal Error (Assertion engine->deserialize(start, size, allocator, runtime) failed. )",
        "python -u run.py --tokens 1,15,27 --max_tokens=4096",
        "docker run -p 8000:8000 -u 1000:1000 -v $PWD:/work -e HF_TOKEN=$HF_TOKEN -e NGC_API_KEY=YOUR_KEY image",
        "git clone git@github.com:org/repo.git; password is required, token is invalid",
        "Digest: sha256:9f1c9ea1cbe4ff2b1c9fbd3bca0efd4fdc8e5b3b1b5a4a3f0ed3a7b6b1f2c3d4",
        "curl -H 'Authorization: Bearer $NVIDIA_API_KEY' BASE_URL/models",
        "architecture Qwen3NextForCausalLM, BertForSequenceClassification, sm90_xmma_gemm_f16f16_tilesize128x128x64",
        "undefined symbol: _ZNK12tensorrt_llm8executor8Response11getErrorMsgB5cxx11Ev",
    ],
)
def test_ordinary_lines_stay_as_they_are(text):
    assert redact_secrets(text) == text


@pytest.mark.parametrize(
    ("line", "hidden"),
    [
        ("Nov 15 10:00:00 gpunode17 kernel: NVRM: Xid", "gpunode17"),
        ("slurmstepd: error: *** STEP 1234.0 ON gpunode19 CANCELLED AT 2026-11-15T10:00:00 ***", "gpunode19"),
        ("srun: error: gpunode20: task 2: Exited with exit code 1", "gpunode20"),
        ("connect to fe80::1%eth0 failed", "fe80::1"),
    ],
)
def test_hosts_are_hidden_where_launchers_put_them(line, hidden):
    assert hidden not in redact_hosts(line)
    assert (
        redact_hosts("terminate called after throwing an instance of 'c10::Error' in std::vector")
        == "terminate called after throwing an instance of 'c10::Error' in std::vector"
    )


def test_a_key_without_an_end_takes_only_key_lines_along():
    assert (
        redact_secrets("loading -----BEGIN PRIVATE KEY----- failed\nCUDA out of memory")
        == f"loading {MARK} failed\nCUDA out of memory"
    )


def test_hosts_and_addresses_are_hidden_when_asked():
    line = "gpu-node-17:2201:2310 [0] NCCL INFO Bootstrap : Using eth0:10.12.0.5<0> peer=gpu-node-18 at fe80:0:0:0:1:2:3:4 and db.corp.example.com"
    clean = redact_hosts(line)
    for hidden in ("gpu-node-17", "10.12.0.5", "gpu-node-18", "fe80:0:0", "db.corp.example.com"):
        assert hidden not in clean
    assert (
        redact_hosts("curl http://127.0.0.1:8000 on localhost, see github.com")
        == "curl http://127.0.0.1:8000 on localhost, see github.com"
    )


PIECES = [
    *"abcXYZ019_-=:/@. \n\"'[]",
    "hf_",
    "password",
    "token=",
    "Bearer ",
    "://",
    "redacted",
    MARK,
    "cookie:",
    "A" * 60,
    "-----BEGIN PRIVATE KEY-----",
]


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_redacting_twice_is_redacting_once(text):
    once = redact_secrets(text)
    assert redact_secrets(once) == once
    assert redact_hosts(redact_hosts(once)) == redact_hosts(once)
