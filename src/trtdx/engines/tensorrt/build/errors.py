"""What can go wrong while TensorRT compiles.

TrtdxError
└── BuildError              no plan was made; carries all that was said until then
    ├── BuildCrashedError   the compiling process died, by a signal or without a word
    └── BuildCancelledError somebody wanted it to stop, or its time was over
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.errors import TrtdxError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.engines.tensorrt.build.nouns import Binding, BuildMessage, ShapeProfile


class BuildError(TrtdxError):
    """A compile that gave no plan.

    Attributes:
        stage: what it was about: "define", "parse", "select", "profile", "compile", "plan".
        messages: all that TensorRT said, and what was printed beside.
        inputs: the inputs of the network, where it came to be.
        profiles: the optimization profiles that were asked for.
        source: what was to be compiled.
        code: the rule that explains it, where we noticed it ourselves and TensorRT said nothing.
        problem: what that rule's page is to say of the source.
    """

    def __init__(self, message: str, *, stage: str, fix: str = "", code: str = "", problem: str = "") -> None:
        super().__init__(message, fix=fix)
        self.stage, self.code, self.problem = stage, code, problem
        self.source = ""
        self.messages: tuple[BuildMessage, ...] = ()
        self.inputs: tuple[Binding, ...] = ()
        self.profiles: tuple[ShapeProfile, ...] = ()

    def with_build_context(
        self,
        source: str,
        messages: Sequence[BuildMessage],
        inputs: Sequence[Binding],
        profiles: Sequence[ShapeProfile],
    ) -> BuildError:
        """Return itself, knowing what came before."""
        self.source = source
        self.messages, self.inputs, self.profiles = tuple(messages), tuple(inputs), tuple(profiles)
        return self


class BuildCrashedError(BuildError):
    """The compiling process died; `signal` is what killed it, "" where it left by itself."""

    def __init__(self, message: str, *, stage: str, signal: str, fix: str = "") -> None:
        super().__init__(message, stage=stage, fix=fix)
        self.signal = signal


class BuildCancelledError(BuildError):
    pass
