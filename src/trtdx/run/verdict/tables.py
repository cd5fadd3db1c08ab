"""The tables beside the findings: the ranks, and who is where in the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.model import Section
from trtdx.run.job.stacks import group_stacks, main_frames, source_line
from trtdx.words import abbreviate_list

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.run.nouns import RankStory
    from trtdx.run.verdict.findings import JobView

MOST_ROWS = 64


def job_sections(view: JobView) -> Iterator[Section]:
    """Yield the table of ranks and, where there are stacks, who shares one."""
    stories = view.ranks or view.others
    if stories:
        rows = tuple(_row(view, story) for story in stories[:MOST_ROWS])
        columns = ("rank", "process", "state", "last collective", "last line printed")
        yield Section("ranks", "ranks" if view.ranks else "processes", columns, rows, after_findings=True)
    stacks = {story.name: frames for story in stories if (frames := main_frames(story.stack))}
    if stacks:
        rows_of_stacks = tuple(
            (abbreviate_list(names, 8), str(frames[0]) if frames else "", source_line(frames[0]) if frames else "")
            for names, frames in group_stacks(stacks)
        )
        yield Section("stacks", "stacks", ("who", "where", "line"), rows_of_stacks, after_findings=True)


def shape_section(view: JobView) -> Iterator[Section]:
    """Yield what --shapes has seen: the shapes that each module got and gave, on the ranks that saw them."""
    names_by_line: dict[str, list[str]] = {}
    for story in view.stories:
        for agent in story.agents:
            for event in agent.events:
                if event["kind"] == "shape":
                    names_by_line.setdefault(str(event["line"]), []).append(story.name)
    if names_by_line:
        rows = tuple(
            (*line.partition(": ")[::2], abbreviate_list(dict.fromkeys(names), 4))
            for line, names in names_by_line.items()
        )
        yield Section("shapes", "shapes", ("module", "in -> out", "where"), rows, after_findings=True)


def _row(view: JobView, story: RankStory) -> tuple[str | int, ...]:
    collectives = [call for call in story.calls if not call.is_message]
    last = collectives[-1] if collectives else None
    words = (
        ""
        if last is None
        else last.in_words() + (" (in it)" if last.is_open else " (failed)" if last.has_failed else "")
    )
    state = story.end.in_words() if story.end else "alive" if story.is_alive else "gone"
    if story.exceptions:
        state += f"; raised {story.exceptions[0].type}"
    rank = story.rank if story.rank is not None else "-"
    return rank, story.pids[0], state, words, view.last_words(story)[:80]
