"""A report as text, JSON, Markdown, or what other tools read. Renderers read the report and nothing else."""

from trtdx.render.github import render_github
from trtdx.render.json import render_json
from trtdx.render.junit import render_junit
from trtdx.render.markdown import render_markdown
from trtdx.render.sarif import render_sarif
from trtdx.render.text import render_text

__all__ = ["render_github", "render_json", "render_junit", "render_markdown", "render_sarif", "render_text"]
