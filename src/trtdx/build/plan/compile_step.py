"""A step that TensorRT's builder makes under our eyes: real progress, the kernels and the memory it reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from trtdx.build.plan.execute import StepFailedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trtdx.build.plan.nouns import PlannedStep
    from trtdx.build.plan.staleness import Surveyor
    from trtdx.build.plan.state import PlanState
    from trtdx.engines.tensorrt.build.nouns import BuiltPlan


def compile_step(
    state: PlanState, step: PlannedStep, surveyor: Surveyor, target: Path, progress: Callable[[str, float], None]
) -> dict[str, Any]:
    """Compile the ONNX file into the step's first output, and return what is known of the plan."""
    from trtdx.engines.tensorrt.build.build import build_plan
    from trtdx.engines.tensorrt.build.errors import BuildError
    from trtdx.engines.tensorrt.build.nouns import BuildOptions

    settings = step.declaration.compile
    assert settings is not None
    paths = dict(surveyor.input_paths(step))
    source = str(paths.get(settings.onnx) or next(iter(paths.values())))
    log = state.log(step.key)
    try:
        built = build_plan(
            source,
            selector=settings.tap,
            variant=cast("Any", settings.mark),
            profiles=settings.profiles,
            options=BuildOptions(compute_capabilities=settings.sm, timeout_s=step.declaration.timeout_s),
            plan=target,
            progress=lambda shown: progress(shown.phase, shown.fraction),
        )
    except BuildError as err:
        log.write_text("".join(f"{message.line}\n" for message in err.messages) + f"[TRT] [E] {err.message}\n")
        raise StepFailedError(step.key, f"{step.key}: {err.message}", log) from err
    log.write_text("".join(f"{message.line}\n" for message in built.messages))
    return plan_figures(built)


def plan_figures(built: BuiltPlan) -> dict[str, Any]:
    """Return what identifies a program: its kernels without their counters, and its memory."""
    from trtdx.engines.tensorrt.build.observer_effect import kernel_identities

    return {
        "tensorrt": built.tensorrt,
        "plan_bytes": built.plan_size,
        "weights_bytes": built.weights_bytes,
        "activation_bytes": list(built.activation_bytes),
        "kernels": [[profile, kind, list(nodes)] for profile, kind, nodes in kernel_identities(built)],
    }
