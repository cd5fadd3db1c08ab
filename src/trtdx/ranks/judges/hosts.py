"""Whether the hosts of a job agree: their names, their clocks, their software; and whether ports are free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.model import Evidence, Severity
from trtdx.ranks.judges.judge import launch_fix
from trtdx.ranks.judges.network import nodes_on_networks
from trtdx.ranks.nouns import RankProbe, RankViolation, name_hosts, name_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.ranks.nouns import ProbedJob

CLOCK_SKEW_S = 2.0  # more than a launch explains; request ids and logs of disaggregated serving carry milliseconds
MUNGE_LIFE_S = 300.0  # a credential of munge is refused after this
# What must be the same on all ranks, and the page of what happens when it is not.
SAME_EVERYWHERE = (
    ("tensorrt-llm", "DX1000"),
    ("torch", "DX1306"),
    ("mpi4py", "DX1306"),
    ("nccl", "DX1306"),
)


def judge_names(job: ProbedJob) -> Iterator[RankViolation]:
    """Host names can be resolved, and those of several hosts do not mean loopback."""
    spans = len(nodes_on_networks(job)) > 1
    failed = [
        (probe, name, str(answer["problem"]))
        for probe in job.probes
        for name, answer in probe.names.items()
        if isinstance(answer, dict) and (spans or name != probe.host)
    ]
    if failed:
        _probe, name, _problem = failed[0]
        yield RankViolation(
            "DX426",
            f"the host name {name} cannot be resolved on {name_hosts([probe for probe, _, _ in failed])}",
            tuple(Evidence(f"{probe.title}: getaddrinfo({name})", problem) for probe, name, problem in failed[:4]),
            (
                launch_fix(
                    "add it to /etc/hosts on every node", f"echo 'IP_OF_THE_HOST {name}' | sudo tee -a /etc/hosts"
                ),
            ),
            tuple(probe for probe, _, _ in failed),
        )
    if spans:
        yield from _names_of_loopback(job)


def _names_of_loopback(job: ProbedJob) -> Iterator[RankViolation]:
    """Gloo announces the address of its own host name; 127.x leads no other host to it."""
    looped = [
        probe
        for probe in nodes_on_networks(job)
        if isinstance(addresses := probe.names.get(probe.host), list)
        and addresses
        and "GLOO_SOCKET_IFNAME" not in probe.environment
        if all(address.startswith("127.") or address == "::1" for address in addresses)
    ]
    if looped:
        probe = looped[0]
        yield RankViolation(
            "DX427",
            f"the name of {name_hosts(looped)} means {', '.join(probe.names[probe.host])} there, which no other host reaches",
            tuple(
                Evidence(f"{one.title}: getaddrinfo({one.host})", ", ".join(one.names[one.host])) for one in looped[:4]
            ),
            (),
            tuple(looped),
            Severity.WARNING,
            0.8,
        )


def judge_ports(job: ProbedJob) -> Iterator[RankViolation]:
    """The ports the job is to listen on are free on the host of its first rank."""
    leaders = [probe for probe in job.probes if probe.rank in (0, None)] or list(job.probes)
    for probe in leaders[:1]:
        for port, state in probe.ports.items():
            if state == "free":
                continue
            yield RankViolation(
                "DX424",
                f"port {port} on {probe.host} cannot be listened on: {state.lower()}",
                (Evidence(f"{probe.title}: bind(0.0.0.0:{port})", state),),
                (launch_fix("see who holds it, or take another port", f"ss -ltnp 'sport = :{port}'"),),
                (probe,),
            )


def judge_clocks(job: ProbedJob) -> Iterator[RankViolation]:
    """The clocks of all hosts lie within the time in which they were asked."""
    if not job.started or not job.is_launched:
        return
    late = [(probe, skew) for probe in job.firsts if abs(skew := _skew(job, probe)) >= CLOCK_SKEW_S]
    if not late:
        return
    _probe, skew = max(late, key=lambda pair: abs(pair[1]))
    breaks_munge = abs(skew) >= MUNGE_LIFE_S and any(one.slurm for one, _ in late)
    yield RankViolation(
        "DX1305",
        f"the clock of {name_hosts([one for one, _ in late])} is at least {abs(skew):.1f} s "
        f"{'ahead of' if skew > 0 else 'behind'} this machine's",
        tuple(
            Evidence(f"{one.title}: time", f"{one.time:.3f}, asked between {job.started:.3f} and {job.ended:.3f}")
            for one, _ in late[:4]
        ),
        (),
        tuple(one for one, _ in late),
        Severity.ERROR if breaks_munge else Severity.WARNING,
    )


def _skew(job: ProbedJob, probe: RankProbe) -> float:
    """Return by how much a clock lies outside the time of the launch, which is the least it can be wrong."""
    if probe.time > job.ended:
        return probe.time - job.ended
    return min(0.0, probe.time - job.started)


def judge_software(job: ProbedJob) -> Iterator[RankViolation]:
    """All ranks run the same releases."""
    for package, code in SAME_EVERYWHERE:
        versions: dict[str, list[RankProbe]] = {}
        for probe in job.probes:
            versions.setdefault(_package_version(probe, package), []).append(probe)
        if len(versions) < 2:
            continue
        words = ", ".join(f"{version or 'none'} on {name_hosts(probes)}" for version, probes in versions.items())
        few = min(versions.values(), key=len)
        yield RankViolation(
            code,
            f"the ranks have different releases of {package}: {words}",
            tuple(
                Evidence(f"{probes[0].title}: {probes[0].executable}", f"{package} {version or 'is not installed'}")
                for version, probes in versions.items()
            ),
            (),
            tuple(few),
        )


def _package_version(probe: RankProbe, package: str) -> str:
    if package != "nccl":
        return probe.packages.get(package, "")
    return next((version for name, version in sorted(probe.packages.items()) if name.startswith("nvidia-nccl")), "")


def judge_temporary_folder(job: ProbedJob) -> Iterator[RankViolation]:
    """Open MPI can make its session directory."""
    closed = [probe for probe in job.probes if probe.tmp.get("writable") is False or probe.tmp.get("problem")]
    if closed:
        probe = closed[0]
        path = str(probe.tmp.get("path", "/tmp"))
        yield RankViolation(
            "DX447",
            f"{name_ranks(closed)} cannot write to {path}, where Open MPI keeps its session",
            (Evidence(f"{probe.title}: {path}", str(probe.tmp.get("problem") or "not writable")),),
            (launch_fix("name another folder", "export TMPDIR=/var/tmp OMPI_MCA_orte_tmpdir_base=/var/tmp"),),
            tuple(closed),
        )


JUDGES = (judge_names, judge_ports, judge_clocks, judge_software, judge_temporary_folder)
