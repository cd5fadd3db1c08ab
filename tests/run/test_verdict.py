"""The verdict on jobs as they were seen, written down by hand: no process is started."""

from __future__ import annotations

import pytest

from trtdx.host import RealHost
from trtdx.knowledge.load import load_book
from trtdx.run.nouns import AgentRecord, Call, JobProcess, JobRecord, ProcessEnd, RaisedException, RankStory
from trtdx.run.verdict.findings import JobView
from trtdx.run.verdict.judge import judge_job


class HandMadeJob:
    """A job that hangs: each rank with what it called, `!` after the last call that it is still in."""

    def __init__(self, folder):
        self.folder = folder
        self.stories = []
        self.record = JobRecord(command=("job",), started=1.0, hang_seen=100.0, quiet_since=90.0)

    def add_rank(self, rank, *calls, groups=None, **agent):
        pid = 1000 + len(self.stories)
        numbers, made = {}, []
        for place, text in enumerate(calls, 1):
            text, _, words = text.partition(" ")
            name, _, group = text.rstrip("!").partition("@")
            group = group or "world"
            numbers[group] = numbers.get(group, 0) + 1
            ended = None if text.endswith("!") else 10.0 + place
            call = Call(
                name=name, group=group, number=numbers[group], place=place,
                data=dict(word.split("=") for word in words.split()), where=f"x.py:{name}",
                began=10.0 + place, ended=ended,
            )  # fmt: skip
            made.append(call)
        entry = AgentRecord(
            folder=str(self.folder), pid=pid, started=2.0, calls=made, groups=groups or {"world": [0, 1, 2, 3]}, **agent
        )
        self.record.processes[pid] = JobProcess(pid=pid, ppid=1, name="python3")
        story = RankStory(rank=rank, pids=[pid], agents=[entry], is_alive=True)
        self.stories.append(story)
        return story

    def verdict(self):
        view = JobView(self.record, self.stories, self.folder / "live", lambda: load_book(RealHost()))
        finding = judge_job(view)[0]
        return finding.code, finding.ranks, finding.message


@pytest.fixture
def job(tmp_path):
    return HandMadeJob(tmp_path)


def test_of_ranks_that_wait_in_different_groups_the_one_that_left_the_common_order_is_to_blame(job):
    low, high = "world/1[0,1]", "world/1[2,3]"
    groups = {"world": [0, 1, 2, 3], low: [0, 1], high: [2, 3]}
    for rank in (0, 1):
        job.add_rank(rank, f"Allreduce@{low}", "Barrier", f"Allreduce@{low}", "Barrier!", groups=groups)
    job.add_rank(2, f"Allreduce@{high}", "Barrier", "Barrier!", groups=groups)
    job.add_rank(3, f"Allreduce@{high}", "Barrier", f"Allreduce@{high}!", groups=groups)
    code, ranks, message = job.verdict()
    assert (code, ranks) == ("DX1246", (2,))
    assert "skipped Allreduce #2 of group world/1[2,3]" in message


def test_without_a_majority_ranks_in_different_groups_wait_for_each_other(job):
    groups = {"world": [0, 1], "world/1[0,1]": [0, 1]}
    job.add_rank(0, "Barrier!", groups=groups)
    job.add_rank(1, "Allreduce@world/1[0,1]!", groups=groups)
    assert job.verdict()[:2] == ("DX1254", (0, 1))


def meet_as(job, *ranks):
    for rank in ranks:
        job.add_rank(rank, "init_process_group@rendezvous!", variables={"RANK": str(rank), "WORLD_SIZE": "4"})


def test_a_rendezvous_that_waits_for_a_rank_nobody_started_is_told(job):
    meet_as(job, 0, 1, 3)
    code, ranks, message = job.verdict()
    assert (code, ranks) == ("DX1258", ())
    assert "rank 2 missing" in message


def test_two_processes_that_bring_one_rank_to_a_rendezvous_are_told(job):
    meet_as(job, 0, 1, 1, 3)
    one, other = [story for story in job.stories if story.rank == 1]
    one.agents += other.agents
    one.pids += other.pids
    job.stories.remove(other)
    assert job.verdict()[:2] == ("DX1259", (1,))


def test_a_rank_that_was_started_again_is_not_claimed_twice(job):
    meet_as(job, 0, 1, 1, 3)
    one, other = [story for story in job.stories if story.rank == 1]
    job.record.ends[one.pids[0]] = ProcessEnd(pid=one.pids[0], time=3.0, status=0)
    other.agents[0].started = 4.0
    one.agents += other.agents
    one.pids += other.pids
    job.stories.remove(other)
    assert job.verdict()[0] == "DX1258"


def test_where_all_are_in_the_same_collective_nobody_is_blamed(job):
    for rank in range(4):
        job.add_rank(rank, "Barrier", "Allreduce!")
    assert job.verdict()[:2] == ("DX1261", ())


@pytest.mark.heavy
def test_sys_exit_that_hangs_in_finalize_is_an_error_status_and_not_a_skipped_collective(job):
    for rank in (0, 2, 3):
        job.add_rank(rank, "Barrier!")
    job.add_rank(1, exit_asked={"status": 3, "time": 50.0, "words": "no shard", "where": "x.py:9"}, left=50.1)
    code, ranks, message = job.verdict()
    assert (code, ranks) == ("DX1245", (1,))
    assert message == "rank 1 called sys.exit and hangs in MPI_Finalize, with status 3"


def test_a_call_of_sys_exit_that_was_caught_is_none(job):
    for rank in (0, 2, 3):
        job.add_rank(rank, "Barrier!")
    job.add_rank(1, exit_asked={"status": 3, "time": 50.0, "where": "x.py:9"})
    assert job.verdict()[0] == "DX1253"


@pytest.mark.parametrize(
    ("words", "code"),
    [("raise RuntimeError('no weights for expert 3')", "DX1242"), ("bind(port)  # address already in use", "DX227")],
)
def test_words_of_the_users_own_raise_are_no_known_cause(words, code, job, tmp_path):
    (tmp_path / "mine.py").write_text(words)
    text = "no weights for expert 3" if code == "DX1242" else "[Errno 98] Address already in use"
    kind = "RuntimeError" if code == "DX1242" else "OSError"
    trace = f'Traceback (most recent call last):\n  File "mine.py", line 1, in f\n    {words}\n{kind}: {text}\n'
    raised = RaisedException(time=20.0, type=kind, text=text, where=f"{tmp_path}/mine.py:1 in f", traceback=trace)
    job.add_rank(0, "Barrier!")
    job.add_rank(1, exceptions=[raised])
    assert job.verdict()[:2] == (code, (1,))


def test_a_rank_whose_child_failed_is_to_blame_where_no_other_rank_failed(job):
    raised = RaisedException(time=20.0, type="subprocess.CalledProcessError", text="Command 'x' returned 4")
    job.add_rank(0, "Barrier!")
    job.add_rank(1, exceptions=[raised])
    assert job.verdict()[:2] == ("DX1242", (1,))


def end_of(story, job, status, time):
    story.is_alive = False
    story.end = job.record.ends[story.pids[0]] = ProcessEnd(pid=story.pids[0], time=time, status=status)


@pytest.mark.heavy
@pytest.mark.parametrize(("call", "status"), [("Barrier!", 9), ("Barrier", 9), ("Barrier!", 0)])
def test_a_rank_that_left_without_finalize_is_to_blame_and_not_those_its_launcher_killed(call, status, job):
    job.record.hang_seen = 0.0
    job.record.launcher_end = ProcessEnd(pid=1, time=60.0, status=status)
    for rank in (0, 1, 3):
        end_of(job.add_rank(rank, call), job, 9, 50.2)
    left = {"time": 50.0, "status": 0, "where": "x.py:3"}
    end_of(job.add_rank(2, exit_called=left, worlds=[{"library": "mpi4py", "rank": 2, "size": 4}]), job, 0, 50.2)
    assert job.verdict()[:2] == ("DX1244", (2,))


def test_of_ends_seen_at_one_look_the_one_that_no_launcher_makes_came_first(job):
    job.record.hang_seen = 0.0
    job.record.launcher_end = ProcessEnd(pid=1, time=60.0, status=9)
    for rank, status in enumerate((9, 9, 5 << 8, 9)):
        end_of(job.add_rank(rank, "Barrier"), job, status, 50.0)
    assert job.verdict()[:2] == ("DX1245", (2,))


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ("Allreduce! n=4 dtype=float64 op=SUM", "DX1248"),
        ("Allreduce! n=8 dtype=float32 op=SUM", "DX1249"),
        ("Allreduce! n=8 dtype=float64 op=MAX", "DX1250"),
        ("Bcast! n=8 dtype=float64 root=0", "DX1247"),
    ],
)
def test_the_rank_whose_call_differs_is_to_blame(wrong, code, job):
    for rank in (0, 1, 3):
        job.add_rank(rank, "Barrier", "Allreduce! n=8 dtype=float64 op=SUM")
    job.add_rank(2, "Barrier", wrong)
    assert job.verdict()[:2] == (code, (2,))


@pytest.mark.parametrize(
    ("status", "code"), [(4, "DX1241"), (6, "DX1241"), (7, "DX1241"), (8, "DX1241"), (11, "DX1241"), (9, "DX1240"),
                         (3 << 8, "DX1245"), (137 << 8, "DX1262")]
)  # fmt: skip
def test_how_a_rank_ended_is_the_cause(status, code, job):
    job.record.hang_seen = 0.0
    job.record.launcher_end = ProcessEnd(pid=1, time=60.0, status=1 << 8)
    for rank in (0, 1, 3):
        end_of(job.add_rank(rank, "Barrier!"), job, 15, 50.5)
    end_of(job.add_rank(2, "Barrier"), job, status, 50.0)
    assert job.verdict()[:2] == (code, (2,))


def test_where_all_were_killed_the_first_of_them_is_to_blame(job):
    job.record.hang_seen = 0.0
    job.record.launcher_end = ProcessEnd(pid=1, time=60.0, status=9 << 8)
    for rank, time in enumerate((50.000003, 50.000001, 50.0, 50.000002)):
        end_of(job.add_rank(rank, "Barrier"), job, 9, time)
    assert job.verdict()[:2] == ("DX1240", (2,))
