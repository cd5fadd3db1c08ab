"""A report as text, JSON or Markdown. Renderers read the report and nothing else."""

from trtdx.render.json import render_json
from trtdx.render.markdown import render_markdown
from trtdx.render.text import render_text

__all__ = ["render_json", "render_markdown", "render_text"]
