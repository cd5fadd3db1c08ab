"""The tools answer the SDK's own client over both transports, and keep to what they may read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager

import jsonschema
import pytest

pytest.importorskip("mcp")

import anyio
import httpx2
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ListRootsResult, Root

from support.paths import ROOT as PROJECT

SHM = (
    "[TensorRT-LLM] TensorRT-LLM version: 1.2.1\n"
    "gpu7:2203:2312 [2] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-k2Xv8a to 9637892 bytes\n"
)
TOKEN = "a-token-of-the-tests"
LIMIT_S = 300


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "server.log").write_text(SHM)
    (tmp_path / "workshop").mkdir()
    (tmp_path / "workshop" / "other.log").write_text(SHM)
    (folder / "link.log").symlink_to(tmp_path / "workshop" / "other.log")
    return folder


@pytest.fixture
def http_server(work):
    """Start a server on loopback and return its address."""
    argv = [sys.executable, "-m", "trtdx", "mcp", "--http", "--root", str(work)]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=os.environ | {"TRTDX_MCP_TOKEN": TOKEN})
    try:
        yield process.stderr.readline().split()[-1]
    finally:
        process.kill()
        process.communicate()


def stdio(*arguments):
    return StdioServerParameters(command=sys.executable, args=["-m", "trtdx", "mcp", *arguments], env=dict(os.environ))


@asynccontextmanager
async def over_http(url):
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=LIMIT_S) as http_client,
        Client(streamable_http_client(url, http_client=http_client)) as client,
    ):
        yield client


def roots_of(*folders):
    async def list_roots(context):
        return ListRootsResult(roots=[Root(uri=folder.as_uri()) for folder in folders])

    return list_roots


async def call_every_tool(client):
    """Call every tool once and hold each answer against the schema that the tool promises."""
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    calls = {
        "diagnose": {"paths": ["server.log"]},
        "explain": {"code": "DX400"},
        "inspect": {"commands": ["trtllm-serve MODEL --tp_size 2"], "runtime": "1.2.1"},
        "memory": {"model": "Llama-3.1-8B", "gpu": "H100", "flags": {"tp": 1}},
        "cases_search": {"paths": ["server.log"]},
    }
    for name, arguments in calls.items():
        result = await client.call_tool(name, arguments)
        assert not result.is_error, result.content[0].text
        jsonschema.validate(result.structured_content, tools[name].output_schema)
        assert len(result.content[0].text) < 4000
        assert tools[name].annotations.read_only_hint
    found = await client.call_tool("diagnose", calls["diagnose"])
    assert found.structured_content["report"]["findings"][0]["code"] == "DX400"
    assert "<untrusted-data>gpu7:2203" in found.content[0].text
    hits = (await client.call_tool("cases_search", calls["cases_search"])).structured_content["hits"]
    assert hits[0]["codes"] == ["DX400"]
    assert set(tools) == {*calls, "compare", "check", "more"}


async def call_what_is_refused(client, work):
    """Ask for what lies outside the roots, and for what would be run."""
    outside = ["/etc/passwd", "../workshop/other.log", str(work.parent / "workshop" / "other.log"), "link.log", "~/x"]
    for path in outside:
        for name, arguments in (
            ("diagnose", {"paths": [path]}),
            ("inspect", {"paths": [path]}),
            ("cases_search", {"paths": [path]}),
            ("check", {"recorded": path}),
            ("compare", {"reference": path, "candidate": path}),
        ):
            result = await client.call_tool(name, arguments)
            assert result.is_error, (name, path)
            assert "root:" not in result.content[0].text
    for name, arguments in (
        ("check", {"python": sys.executable}),
        ("compare", {"reference": "command:id", "candidate": "x"}),
    ):
        result = await client.call_tool(name, arguments)
        assert result.is_error
        assert "run" in result.content[0].text
    assert (await client.call_tool("explain", {"code": "DX99999"})).is_error
    assert (await client.call_tool("more", {"cursor": "0.1"})).is_error


async def read_rules(client):
    page = (await client.read_resource("trtdx://rules/DX400")).contents[0].text
    assert page.startswith("# Shared memory")
    assert "DX400" in (await client.read_resource("trtdx://rules")).contents[0].text


async def page_through(client, text):
    """Read a long answer to its end, and return the codes in it."""
    result = await client.call_tool("diagnose", {"text": text})
    codes, pages = [], 1
    while True:
        assert len(json.dumps(result.structured_content["report"])) < 60_000
        codes += [finding["code"] for finding in result.structured_content["report"]["findings"]]
        cursor = result.structured_content["next_cursor"]
        if cursor is None:
            return codes, pages
        result = await client.call_tool("more", {"cursor": cursor})
        pages += 1


@pytest.fixture(scope="module")
def long_text(book):
    rules = [rule for rule in book if rule.kind.value == "cause" and rule.front.log and rule.fires_on]
    return "\n".join(rule.fires_on[0] for rule in rules[::12])


@pytest.mark.heavy
def test_over_standard_input_with_the_clients_roots(work, long_text):
    async def talk(mode):
        async with Client(stdio(), list_roots_callback=roots_of(work), mode=mode) as client:
            await call_every_tool(client)
            await call_what_is_refused(client, work)
            await read_rules(client)
            codes, pages = await page_through(client, long_text)
            assert pages > 1
            assert len(codes) == len(set(codes)) > 20

    anyio.run(talk, "auto")


@pytest.mark.heavy
def test_clients_of_the_older_protocol_name_roots_too(work):
    async def talk():
        async with Client(stdio(), list_roots_callback=roots_of(work), mode="legacy") as client:
            assert not (await client.call_tool("diagnose", {"paths": ["server.log"]})).is_error
            assert (await client.call_tool("diagnose", {"paths": ["link.log"]})).is_error

    anyio.run(talk)


@pytest.mark.heavy
def test_without_roots_no_file_is_read_and_the_command_line_rules(work):
    async def talk():
        async with Client(stdio()) as client:
            refused = await client.call_tool("diagnose", {"paths": [str(work / "server.log")]})
            assert refused.is_error
            assert "trtdx mcp --root DIR" in refused.content[0].text
            assert not (await client.call_tool("diagnose", {"text": SHM})).is_error
        async with Client(stdio("--root", str(work)), list_roots_callback=roots_of(work.parent)) as client:
            assert not (await client.call_tool("diagnose", {"paths": ["server.log"]})).is_error
            assert (await client.call_tool("diagnose", {"paths": ["../workshop/other.log"]})).is_error

    anyio.run(talk)


@pytest.mark.heavy
def test_over_http_with_a_token(http_server, work):
    async def talk():
        async with over_http(http_server) as client:
            await call_every_tool(client)
            await call_what_is_refused(client, work)
            await read_rules(client)

    anyio.run(talk)


@pytest.mark.heavy
def test_strangers_are_turned_away(http_server):
    ask = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    known = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/json, text/event-stream"}
    assert http_server.startswith("http://127.0.0.1:")
    with httpx2.Client(timeout=LIMIT_S) as client:
        assert client.post(http_server, json=ask).status_code == 401
        assert client.post(http_server, json=ask, headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert client.post(http_server, json=ask, headers=known | {"Host": "evil.example"}).status_code in (403, 421)
        assert client.post(http_server, json=ask, headers=known | {"Origin": "https://evil.example"}).status_code == 403


@pytest.mark.heavy
def test_what_was_allowed_is_run(work):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("torch")
    tiny = PROJECT / "examples" / "tiny"
    sides = {"reference": f"onnx:{tiny}/model.onnx", "candidate": f"onnx:{tiny}/model.onnx"}

    async def talk():
        async with Client(stdio("--root", str(tiny))) as client:
            refused = await client.call_tool("compare", sides)
            assert "--allow-run" in refused.content[0].text
        async with Client(stdio("--root", str(tiny), "--allow-run")) as client:
            result = await client.call_tool("check", {"python": sys.executable})
            assert not result.is_error, result.content[0].text

    anyio.run(talk)


@pytest.mark.heavy
def test_captures_are_compared_without_running_anything(work):
    np = pytest.importorskip("numpy")
    pytest.importorskip("xxhash")
    for name, value in (("a.npz", 1.0), ("b.npz", 2.0)):
        np.savez(work / name, layer=np.full((4, 4), value, np.float32))

    async def talk():
        async with Client(stdio("--root", str(work))) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            result = await client.call_tool("compare", {"reference": "a.npz", "candidate": "b.npz"})
            assert not result.is_error, result.content[0].text
            jsonschema.validate(result.structured_content, tools["compare"].output_schema)
            assert result.structured_content["report"]["findings"]

    anyio.run(talk)
