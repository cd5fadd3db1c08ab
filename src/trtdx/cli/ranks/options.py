"""Options of `trtdx ranks`: how ranks are started, how a model is cut over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from trtdx.cli.groups import OptionGroup
from trtdx.cli.project import load_project_defaults
from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.host import Host
    from trtdx.ranks.launchers import RankLauncher
    from trtdx.ranks.mapping import MappingAnswer, ParallelSizes
    from trtdx.ranks.nouns import RankProbe
    from trtdx.rule import RuleBook

ModelPath = Annotated[str, typer.Argument(metavar="[ENGINE|MODEL]", help="Check how it is cut over the ranks too.")]


COMMAND_KEY = "trtdx.command_words"


class CommandAfterDashes(TyperCommand):
    """A command whose words after -- are another one's, kept apart from its own arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[COMMAND_KEY] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND ...]"]


def command_words(context: typer.Context) -> tuple[str, ...]:
    """Return the words after --."""
    words: tuple[str, ...] = context.meta.get(COMMAND_KEY, ())
    return words


@dataclass(frozen=True, kw_only=True)
class LauncherOptions(OptionGroup):
    """How ranks are started."""

    count: Annotated[int, typer.Option("-n", "--n", metavar="N", min=0, help="How many ranks.", show_default=False)] = 0
    launcher: Annotated[
        str,
        typer.Option("--launcher", metavar="WORDS", help="The launcher as you use it, such as 'mpirun -n 4 -H a,b'."),
    ] = ""
    slurm: Annotated[bool, typer.Option("--slurm", help="Start them with srun --mpi=pmix.")] = False
    hosts: Annotated[str, typer.Option("--hosts", metavar="A,B", help="Start them by ssh on these hosts.")] = ""
    python: Annotated[str, typer.Option("--python", metavar="PATH", help="The Python of the job.")] = "python3"

    def __post_init__(self) -> None:
        """Refuse two ways of starting at once."""
        named = [
            flag
            for flag, value in (("--launcher", self.launcher), ("--slurm", self.slurm), ("--hosts", self.hosts))
            if value
        ]
        if len(named) > 1:
            raise typer.BadParameter(f"{named[0]} does not go with {named[1]}: ranks are started in one way")

    def build_launcher(self, host: Host, count: int, *, spawns: bool = False) -> RankLauncher:
        """Return the launcher that was named, or the usual one."""
        import os

        from trtdx.ranks.launchers import RankLauncher, choose_launcher, parse_launcher

        if self.launcher:
            return parse_launcher(self.launcher, 0 if spawns else count)
        if spawns:
            return RankLauncher((), "", 1)
        cpus = len(os.sched_getaffinity(0))
        return choose_launcher(host, count, slurm=self.slurm, hosts=self._host_names(), cpus=cpus)

    def stated_count(self) -> int:
        """Return how many ranks -n or the launcher's own words say; 0 where neither does."""
        from trtdx.ranks.launchers import parse_launcher

        named = parse_launcher(self.launcher) if self.launcher else None
        return named.ranks if named and named.is_counted else self.count

    def _host_names(self) -> list[str]:
        return [word.strip() for word in self.hosts.split(",") if word.strip()]

    def peers(self, host: Host) -> tuple[str, ...]:
        """Return the names that every rank must be able to resolve."""
        master = host.environment().get("MASTER_ADDR", "")
        return (*self._host_names(), *([master] if master else []))


@dataclass(frozen=True, kw_only=True)
class SizeOptions(OptionGroup):
    """How a model is cut over ranks, and for which release."""

    tp: Annotated[int, typer.Option("--tp", metavar="N", min=0, help="Tensor parallelism.", show_default=False)] = 0
    pp: Annotated[int, typer.Option("--pp", metavar="N", min=0, help="Pipeline parallelism.", show_default=False)] = 0
    cp: Annotated[int, typer.Option("--cp", metavar="N", min=0, help="Context parallelism.", show_default=False)] = 0
    ep: Annotated[int, typer.Option("--ep", metavar="N", min=0, help="Expert parallelism.", show_default=False)] = 0
    runtime: Annotated[
        str, typer.Option("--runtime", metavar="VERSION", help="The TensorRT-LLM release.", show_default=False)
    ] = ""

    def build_sizes(self) -> ParallelSizes:
        from trtdx.ranks.mapping import ParallelSizes

        return ParallelSizes(self.tp, self.pp, self.cp, self.ep)


def usual_runtime(host: Host) -> str:
    """Return the release that the project's defaults name."""
    return load_project_defaults(host).runtime


def check_model(
    host: Host, book: RuleBook, model: str, sizes: SizeOptions, world: int, command: Sequence[str]
) -> MappingAnswer | None:
    """Return whether a model, named or found in the command, can be cut this way; None where there is none."""
    from trtdx.ranks.mapping import check_mapping, model_in_command

    path = model or model_in_command(host, command)
    if not path:
        return None
    return check_mapping(
        host, book, path=path, sizes=sizes.build_sizes(), world=world, runtime=sizes.runtime or usual_runtime(host)
    )


def collect_ports(host: Host, command: Sequence[str], named: Sequence[int]) -> tuple[int, ...]:
    """Return the ports that the job is to listen on: named, of its server, of torch's meeting point."""
    from trtdx.ranks.launch.program import server_port

    master = host.environment().get("MASTER_PORT", "")
    ports = [*named, *([server_port(command)] if command else []), *([int(master)] if master.isdigit() else [])]
    wrong = [port for port in ports if not 0 <= port < 65536]
    if wrong:
        raise InputError(f"{wrong[0]} is no port", fix="ports are numbers from 1 to 65535")
    return tuple(dict.fromkeys(port for port in ports if port))


def probe_here(host: Host, python: str) -> RankProbe:
    """Return what one process sees that is started from this shell without a launcher."""
    from trtdx.ranks.collect import RankQuestion, probe_ranks
    from trtdx.ranks.launchers import RankLauncher

    run = probe_ranks(host, RankQuestion(RankLauncher((), "", 1), python=python))
    if not run.job.probes:
        launch = run.launches[0]
        raise InputError(
            f"{python} could not be run: {launch.problem or launch.output.strip()[-200:]}",
            fix="--python PATH names the job's Python",
        )
    probe: RankProbe = run.job.probes[0]
    return probe
