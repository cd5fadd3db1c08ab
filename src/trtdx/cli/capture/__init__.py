"""`trtdx capture`: running a model is its main command; the others look at captures and move them."""

from __future__ import annotations

from trtdx.cli.capture import build, run, tools
from trtdx.cli.groups import MAIN, expand_groups, make_command_group

app = make_command_group("Run a model on any engine and capture its intermediate tensors.")
app.command(
    MAIN,
    hidden=True,
    epilog="Example: trtdx capture ./model --tokens '1 15 27' --new-tokens 16 --tap 'layers.*:out' --watch nan",
)(expand_groups(run.run_capture))
app.command("show", epilog="Example: trtdx capture show ./capture 'layers.*.mlp:out' --steps 0 --sort absmax")(
    expand_groups(tools.show_capture)
)
app.command(
    "query",
    epilog='Example: trtdx capture query ./capture "select name, max(absmax) from tensors group by name order by 2 desc limit 10"',
)(expand_groups(tools.query_capture))
app.command("verify", epilog="Example: trtdx capture verify ./capture")(expand_groups(tools.verify_values))
app.command("import", epilog="Example: trtdx capture import ./tllm_debug ./capture")(tools.import_dump)
app.command("export", epilog="Example: trtdx capture export ./capture tensors.safetensors --tap 'layers.*.mlp:out'")(
    tools.export_values
)
app.command("replay", epilog="Example: trtdx capture replay ./capture layers.3 --model ./model.onnx --step 2")(
    expand_groups(tools.replay_module)
)
app.command(
    "build",
    epilog="Example: trtdx capture build model.onnx --tap 'layers.*.mlp:out' --variant debug-tensors --profile 'x:1x8,4x8,16x8'",
)(expand_groups(build.build_engine))
