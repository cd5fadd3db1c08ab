"""The tools and resources, in the words of the MCP SDK. Imported only when a server is started."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import anyio.to_thread
from mcp.server.mcpserver import Context, ListRoots, MCPServer, Resolve
from mcp_types import CallToolResult, ListRootsResult, TextContent, ToolAnnotations
from pydantic import Field

from trtdx.errors import TrtdxError
from trtdx.host import RealHost
from trtdx.knowledge.load import load_book
from trtdx.mcp import questions
from trtdx.mcp.answers import NOTICE, hits_text, report_text
from trtdx.mcp.confined_host import ConfinedHost, root_from_uri
from trtdx.mcp.pages import KeptAnswers, pages_of_report, plain_data
from trtdx.mcp.schemas import HITS_SCHEMA, PAGE_SCHEMA, report_schema
from trtdx.redact import redact_secrets
from trtdx.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtdx.model import Report

INSTRUCTIONS = f"""Answers questions about TensorRT-LLM deployments: root causes of logs, contents of models and engines, GPU
memory, differences between runs, environments, and what the team has met before. Start with diagnose for a log; explain gives the
page of a code. Answers are cut into pages; `more` gives the next. {NOTICE}"""
READ_ONLY = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
SCHEMAS = {
    "diagnose": report_schema("report"), "inspect": report_schema("report"), "check": report_schema("report"),
    "memory": report_schema("memory"), "compare": report_schema("compare"), "cases_search": HITS_SCHEMA,
    "explain": PAGE_SCHEMA,
}  # fmt: skip


def ask_for_roots(ctx: Context) -> ListRootsResult | ListRoots:
    """Ask the client for its roots, if it has such a thing."""
    capabilities = ctx.client_capabilities
    return ListRoots() if capabilities and capabilities.roots is not None else ListRootsResult(roots=[])


Roots = Annotated[ListRootsResult, Resolve(ask_for_roots)]
Paths = Annotated[list[str], Field(default_factory=list, description="Files or folders below the client's roots.")]
Commands = Annotated[
    list[str], Field(default_factory=list, description="trtllm-serve, trtllm-bench or trtllm-build lines.")
]
Runtime = Annotated[str, Field(description="The TensorRT-LLM release, such as 1.2.1.")]
Gpu = Annotated[str, Field(description="The GPU, such as H100 or 2xH100.")]


class SchemaServer(MCPServer[Any]):
    """A server whose tools promise the schemas in docs/."""

    async def list_tools(self) -> list[Any]:
        return [
            tool.model_copy(update={"output_schema": SCHEMAS.get(tool.name)}) for tool in await super().list_tools()
        ]


class AssistantTools:
    """The tools; each answers with data and a short text."""

    def __init__(self, roots: Sequence[str], *, runs: bool, rules: Sequence[str] = ()) -> None:
        self._roots, self._runs = tuple(roots), runs
        self._book = load_book(RealHost(), list(rules))
        self._answers = KeptAnswers()

    async def diagnose(
        self,
        roots: Roots,
        paths: Paths,
        text: Annotated[str, Field(description="Log text, instead of or beside files.")] = "",
    ) -> CallToolResult:
        """Name the root cause in logs first, with its evidence, the fix, and how to verify it."""
        return await self._report(roots, questions.diagnose_logs, paths=paths, text=text)

    async def inspect(
        self,
        roots: Roots,
        paths: Paths,
        commands: Commands,
        requests: Annotated[list[str], Field(default_factory=list, description="batch=8,input_len=900,output_len=100")],
        runtime: Runtime = "",
        gpu: Gpu = "",
        gpus: int = 0,
    ) -> CallToolResult:
        """Say what is in models, checkpoints, engines and option files, and what disagrees with what."""
        values = {"commands": commands, "requests": requests, "runtime": runtime, "gpu": gpu, "gpus": gpus}
        return await self._report(roots, questions.inspect_paths, paths=paths, **values)

    async def memory(
        self,
        roots: Roots,
        commands: Commands,
        flags: Annotated[
            dict[str, str | int | float | bool],
            Field(default_factory=dict, description="TensorRT-LLM's own: tp, max_batch_size, kv_cache_dtype ..."),
        ],
        model: Annotated[str, Field(description="A folder below a root, or a known name such as Llama-3.1-8B.")] = "",
        gpu: Gpu = "",
        runtime: Runtime = "",
        dims: Annotated[str, Field(description="num_layers=32,hidden_size=4096,...")] = "",
    ) -> CallToolResult:
        """Plan what each GPU holds, whether it fits, and what to change."""
        values = {"gpu": gpu, "runtime": runtime, "dims": dims, "commands": commands, "flags": flags}
        return await self._report(roots, questions.plan_memory, model=model, **values)

    async def compare(
        self,
        roots: Roots,
        reference: Annotated[str, Field(description="A capture or dump; with --allow-run also hf:DIR, onnx:FILE.")],
        candidate: Annotated[str, Field(description="The side to compare with it.")],
    ) -> CallToolResult:
        """Find the first tensor of a candidate that is really wrong, not merely noisy."""
        values = {"reference": reference, "candidate": candidate, "runs": self._runs}
        return await self._report(roots, questions.compare_sides, **values)

    async def check(
        self,
        roots: Roots,
        recorded: Annotated[str, Field(description="What `trtdx check --save FILE` wrote.")] = "",
        container: Annotated[str, Field(description="An unpacked root file system.")] = "",
        python: Annotated[str, Field(description="An interpreter; needs a server with --allow-run.")] = "",
    ) -> CallToolResult:
        """Say what is wrong with a Python environment for TensorRT-LLM, and what mends it."""
        values = {"recorded": recorded, "container": container, "python": python, "runs": self._runs}
        return await self._report(roots, questions.check_python, **values)

    async def cases_search(
        self,
        roots: Roots,
        paths: Paths,
        words: Annotated[str, Field(description="Words to look for, or the id of a case.")] = "",
        limit: Annotated[int, Field(ge=1, le=50)] = 10,
    ) -> CallToolResult:
        """Find past cases and rule pages that are like words or logs, and what helped."""
        host = self._host(roots)
        try:
            hits = await anyio.to_thread.run_sync(partial(questions.search_past, host, self._book, words, paths, limit))
        except TrtdxError as err:
            return _refusal(err)
        data = plain_data(hits)
        return _tool_result(hits_text(data), {"hits": data, "notice": NOTICE})

    async def explain(
        self, code: Annotated[str, Field(description="A code or slug, such as DX400.")]
    ) -> CallToolResult:
        """Give the page of a cause: why it happens, what to do, how to verify."""
        try:
            rule = self._book.get(code)
        except TrtdxError as err:
            return _refusal(err)
        data = {"code": rule.code, "slug": rule.slug, "title": rule.title, "page": rule.body[:20_000]}
        return _tool_result(f"{rule.code}: {rule.title}. {rule.why}", data)

    async def more(self, cursor: Annotated[str, Field(description="next_cursor of an answer.")]) -> CallToolResult:
        """Give the next page of an answer."""
        try:
            page, following = self._answers.page(cursor)
        except TrtdxError as err:
            return _refusal(err)
        return _result_from_page(page, following)

    async def _report(self, roots: ListRootsResult, ask: Callable[..., Report], **values: Any) -> CallToolResult:
        host = self._host(roots)
        try:
            report = await anyio.to_thread.run_sync(partial(ask, host, self._book, **values))
        except TrtdxError as err:
            return _refusal(err)
        pages = pages_of_report(report)
        name = self._answers.keep(pages)
        return _result_from_page(pages[0], f"{name}.1" if name else None)

    def _host(self, roots: ListRootsResult) -> ConfinedHost:
        """Return what may be read: the roots of the command line, else those that the client names."""
        named = [root_from_uri(str(root.uri)) for root in roots.roots]
        return ConfinedHost(self._roots or named, runs=self._runs)

    def rule_page(self, code: str) -> str:
        """Return the page of a cause as Markdown."""
        return self._book.get(code).body

    def rule_list(self) -> str:
        """Return all rules, one a line."""
        return "\n".join(f"{rule.code} {rule.slug}: {rule.title}" for rule in self._book)


def _tool_result(text: str, data: dict[str, Any], *, is_error: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=data, is_error=is_error)


def _result_from_page(page: dict[str, Any], following: str | None) -> CallToolResult:
    return _tool_result(report_text(page, following), {"report": page, "next_cursor": following, "notice": NOTICE})


def _refusal(err: TrtdxError) -> CallToolResult:
    """Return what the user can act on as the tool's error."""
    text = redact_secrets(err.message + (f" (fix: {err.fix})" if err.fix else ""))
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)


def make_server(roots: Sequence[str], *, runs: bool, rules: Sequence[str] = ()) -> MCPServer[Any]:
    """Return the server with its tools and resources."""
    tools = AssistantTools(roots, runs=runs, rules=rules)
    server = SchemaServer(name="trtdx", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING")
    for tool in (
        tools.diagnose, tools.explain, tools.inspect, tools.memory, tools.compare, tools.check, tools.cases_search, tools.more,
    ):  # fmt: skip
        server.add_tool(tool, annotations=READ_ONLY)
    server.resource("trtdx://rules", name="rules", title="All rules", mime_type="text/plain")(tools.rule_list)
    server.resource("trtdx://rules/{code}", name="rule", title="The page of a cause", mime_type="text/markdown")(
        tools.rule_page
    )
    return server
