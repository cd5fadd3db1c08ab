"""Whether NCCL's and Open MPI's variables are spelt right, hold values they take, and do not contradict each other."""

from __future__ import annotations

import difflib
import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from trtdx.model import Evidence, Severity
from trtdx.ranks.judges.judge import launch_fix
from trtdx.ranks.nouns import RankProbe, RankViolation, name_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.ranks.nouns import ProbedJob

# Values as NCCL 2.8 to 2.30 takes them; a list may begin with ^ and name a function before a colon.
TEXT_VALUES = {
    "NCCL_ALGO": "tree ring collnetdirect collnetchain collnet nvls nvlstree pat",
    "NCCL_PROTO": "ll ll128 simple",
    "NCCL_DEBUG": "version warn info abort trace",
    "NCCL_SOCKET_FAMILY": "af_inet af_inet6",
    "NCCL_P2P_LEVEL": "loc nvl nvb pix pxb pxn c2c p2c phb sys dis",
    "NCCL_NET_GDR_LEVEL": "loc nvl nvb pix pxb pxn c2c p2c phb sys dis",
}
LISTS = ("NCCL_ALGO", "NCCL_PROTO")
EXACT = ("NCCL_SOCKET_FAMILY", "NCCL_P2P_LEVEL")  # compared letter by letter, so in capitals
NUMBER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+)")
MISSPELT = 0.88


@cache
def nccl_variables() -> dict[str, bool]:
    """Return the names NCCL reads, and whether it reads a number."""
    text = (resources.files("trtdx") / "data" / "nccl_variables.txt").read_text("utf-8")
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {name: kind == "number" for name, kind in rows}


def value_problem(name: str, value: str) -> str:
    """Return why NCCL does not take a value, or nothing."""
    if name in TEXT_VALUES:
        return _text_problem(name, value)
    is_number = nccl_variables().get(name) or name == "NCCL_P2P_DISABLE"
    return (
        f"{value!r} is not a number, so NCCL keeps its default"
        if is_number and not NUMBER.fullmatch(value.strip())
        else ""
    )


def _text_problem(name: str, value: str) -> str:
    allowed = TEXT_VALUES[name].split()
    if value.strip().isdigit() and name.endswith("_LEVEL"):
        return ""
    words = re.split(r"[,;]", re.sub(r"\w+:", "", value).replace("^", "")) if name in LISTS else [value]
    for word in words:
        if word.strip().lower() not in allowed:
            return f"{word.strip()!r} is none of {', '.join(allowed)}"
        if name in EXACT and word != word.upper():
            return f"{word!r} must be in capitals"
    return ""


def judge_nccl_values(job: ProbedJob) -> Iterator[RankViolation]:
    """NCCL's variables hold values that NCCL takes."""
    wrong: dict[tuple[str, str], list[RankProbe]] = {}
    for probe in job.probes:
        for name, value in probe.environment.items():
            if name.startswith("NCCL_") and value_problem(name, value):
                wrong.setdefault((name, value), []).append(probe)
    for (name, value), probes in wrong.items():
        yield RankViolation(
            "DX740",
            f"{name}={value} on {name_ranks(probes)}: {value_problem(name, value)}",
            (Evidence(f"{probes[0].title}: {name}", value),),
            (launch_fix("correct it, or take it away", f"unset {name}"),),
            tuple(probes),
            None if name in LISTS else Severity.WARNING,
        )


def judge_nccl_names(job: ProbedJob) -> Iterator[RankViolation]:
    """No variable looks like one of NCCL's and is none."""
    known = nccl_variables()
    unknown: dict[str, list[RankProbe]] = {}
    for probe in job.probes:
        for name in probe.environment:
            if name.startswith("NCCL_") and name not in known:
                unknown.setdefault(name, []).append(probe)
    for name, probes in unknown.items():
        near = difflib.get_close_matches(name, known, 1, MISSPELT)
        if near:
            yield RankViolation(
                "DX1310",
                f"{name} is no variable of NCCL; {near[0]} is",
                (Evidence(f"{probes[0].title}: {name}", probes[0].environment[name]),),
                (launch_fix("spell it as NCCL does", f"export {near[0]}={probes[0].environment[name]}; unset {name}"),),
                tuple(probes),
                Severity.WARNING,
                0.85,
            )


# Pairs that cannot both be meant: what is set, and what comes of it.
CONTRADICTIONS = (
    ("NCCL_NET", r"(?i)IB", "NCCL_IB_DISABLE", r"1", "NCCL has to use InfiniBand and may not", "DX740", Severity.ERROR),
    (
        "NCCL_P2P_DISABLE", r"1", "NCCL_SHM_DISABLE", r"1",
        "ranks of one node talk over the network, many times slower", "DX1311", Severity.WARNING,
    ),
    (
        "OMPI_MCA_btl_tcp_if_include", r".+", "OMPI_MCA_btl_tcp_if_exclude", r".+",
        "Open MPI takes one of them only, and gives up its TCP transport", "DX746", Severity.ERROR,
    ),
    (
        "NCCL_IB_HCA", r".+", "NCCL_IB_DISABLE", r"1",
        "the adapter that is named is not used", "DX1311", Severity.WARNING,
    ),
)  # fmt: skip


def judge_contradictions(job: ProbedJob) -> Iterator[RankViolation]:
    """No two variables undo each other."""
    for first, one, second, other, effect, code, severity in CONTRADICTIONS:
        torn = [
            probe
            for probe in job.probes
            if re.fullmatch(one, probe.environment.get(first, ""))
            and re.fullmatch(other, probe.environment.get(second, ""))
        ]
        if not torn:
            continue
        values = torn[0].environment
        yield RankViolation(
            code,
            f"{first}={values[first]} and {second}={values[second]} on {name_ranks(torn)}: {effect}",
            (Evidence(f"{torn[0].title}: variables", f"{first}={values[first]}, {second}={values[second]}"),),
            (launch_fix("keep the one that is meant", f"unset {second}"),),
            tuple(torn),
            severity,
        )
    yield from _transports_of_open_mpi(job)


def _transports_of_open_mpi(job: ProbedJob) -> Iterator[RankViolation]:
    """A list of Open MPI's transports has the one that a rank uses for itself."""
    wrong = [
        probe
        for probe in job.probes
        if (value := probe.environment.get("OMPI_MCA_btl", ""))
        and not value.startswith("^")
        and "self" not in value.split(",")
    ]
    if wrong:
        value = wrong[0].environment["OMPI_MCA_btl"]
        yield RankViolation(
            "DX746",
            f"OMPI_MCA_btl={value} leaves out self, without which no rank of Open MPI starts",
            (Evidence(f"{wrong[0].title}: OMPI_MCA_btl", value),),
            (launch_fix("name self too", f"export OMPI_MCA_btl=self,{value}"),),
            tuple(wrong),
        )


JUDGES = (judge_nccl_values, judge_nccl_names, judge_contradictions)
