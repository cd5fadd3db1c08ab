"""Cases in a terminal, for people on ssh: the list, a case, its logs, and its maps."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Header, Input, Static

from trtdx.errors import TrtdxError
from trtdx.pictures import HeatMap, list_maps
from trtdx.render.text import printable_text, render_text
from trtdx.ui.log_text import LINE_REMARKS, PAGE_LINES, window_lines
from trtdx.ui.shelves import MOST_CASES

if TYPE_CHECKING:
    from textual.binding import BindingType

    from trtdx.ui.nouns import LogFile
    from trtdx.ui.read_case import ReadCase
    from trtdx.ui.shelves import CaseShelf

BEFORE_MARK = 20
LINE_STYLES = {"cause": "bold reverse", "hit": "bold", "line": ""}
BACK: list[BindingType] = [("escape,u", "app.pop_screen", "back"), ("q", "app.quit", "quit")]


class CaseTerminal(App[None]):
    """The list of a shelf's cases, and the way into each."""

    TITLE = "trtdx"
    ENABLE_COMMAND_PALETTE = False
    CSS = "DataTable { height: 1fr; } #detail { height: auto; max-height: 6; padding: 0 1; }"
    BINDINGS: ClassVar[list[BindingType]] = [("slash", "search", "search"), ("q", "quit", "quit")]

    def __init__(self, shelf: CaseShelf) -> None:
        super().__init__()
        self._shelf = shelf

    def compose(self) -> ComposeResult:
        yield Header()
        yield Input(placeholder="search: words, a code, a line of a log")
        yield DataTable(cursor_type="row")
        yield Footer()

    def on_mount(self) -> None:
        table = self.query_one(DataTable)
        table.add_columns("when", "worst", "what it was", "case")
        self._list_cases("")
        table.focus()

    def _list_cases(self, words: str) -> None:
        table = self.query_one(DataTable)
        table.clear()
        listed = self._shelf.list_cases(words, most=MOST_CASES)
        for row in listed.rows:
            table.add_row(*(Text(cell) for cell in (row.when, row.severity, row.text, row.name)), key=row.key)
        self.sub_title = f"{listed.total} cases" if listed.total != 1 else "1 case"

    def action_search(self) -> None:
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._list_cases(event.value)
        self.query_one(DataTable).focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        try:
            self.push_screen(CaseScreen(self._shelf.read(str(event.row_key.value))))
        except TrtdxError as err:
            self.notify(printable_text(err.message), severity="error", markup=False)


class CaseScreen(Screen[None]):
    """One case as the terminal's own report shows it, and the keys that lead to its logs and maps."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("d", "toggle_details", "all evidence"),
        ("l", "show_log", "logs"),
        ("m", "show_map", "maps"),
        *BACK,
    ]

    def __init__(self, read: ReadCase) -> None:
        super().__init__()
        self._read = read
        self._has_details = False
        self._maps = list_maps(read.view.report.pictures())

    def compose(self) -> ComposeResult:
        yield Header()
        with VerticalScroll():
            yield Static(self._report_text(), id="report")
        yield Footer()

    def on_mount(self) -> None:
        self.sub_title = printable_text(self._read.view.command or self._read.view.name)

    def _report_text(self) -> Text:
        view = self._read.view
        logs = "\n".join(f"log: {printable_text(log.name)}" for log in view.logs)
        return Text(render_text(view.report, details=self._has_details) + "\n" + logs)

    def action_toggle_details(self) -> None:
        self._has_details = not self._has_details
        self.query_one("#report", Static).update(self._report_text())

    def action_show_log(self) -> None:
        logs = sorted(self._read.view.logs, key=lambda log: (not log.causes, not log.symptoms))
        if logs:
            self.app.push_screen(LogScreen(self._read, logs))
        else:
            self.notify("this case holds no log")

    def action_show_map(self) -> None:
        if self._maps:
            self.app.push_screen(MapScreen(self._maps))
        else:
            self.notify("this case has no map: comparisons and memory frontiers do")


class LogScreen(Screen[None]):
    """Some hundred lines of a log around its cause; other lines and other logs are a key away."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("n", "turn(1)", "next lines"),
        ("p", "turn(-1)", "lines before"),
        ("c", "next_mark", "next finding"),
        ("tab", "next_log", "next log"),
        *BACK,
    ]

    def __init__(self, read: ReadCase, logs: list[LogFile]) -> None:
        super().__init__()
        self._case, self._logs, self._at = read.case, logs, 0
        self._first, self._mark = 1, 0

    @property
    def _log(self) -> LogFile:
        return self._logs[self._at]

    def compose(self) -> ComposeResult:
        yield Header()
        with VerticalScroll():
            yield Static(id="lines")
        yield Footer()

    def on_mount(self) -> None:
        self._open_log()

    def _open_log(self) -> None:
        self._mark = self._log.first_line
        self._show(max(1, self._mark - BEFORE_MARK))

    def _show(self, first: int) -> None:
        rows, has_more = window_lines(self._case, self._log, first)
        if not rows and first > 1:
            return  # the log ends before
        self._first = first
        text = Text()
        for number, line in rows:
            kind = "cause" if number in self._log.causes else "hit" if number in self._log.symptoms else "line"
            text.append(f"{number:>8} {printable_text(line)}{LINE_REMARKS[kind]}\n", LINE_STYLES[kind])
        self.query_one("#lines", Static).update(text)
        self.query_one(VerticalScroll).scroll_home(animate=False)
        last = rows[-1][0] if rows else 0
        self.sub_title = f"{printable_text(self._log.name)}: lines {first} to {last}{'' if has_more else ', the end'}"

    def action_turn(self, direction: int) -> None:
        self._show(max(1, self._first + direction * PAGE_LINES))

    def action_next_mark(self) -> None:
        marks = sorted(self._log.causes | self._log.symptoms)
        if marks:
            self._mark = next((line for line in marks if line > self._mark), marks[0])
            self._show(max(1, self._mark - BEFORE_MARK))

    def action_next_log(self) -> None:
        self._at = (self._at + 1) % len(self._logs)
        self._open_log()


class MapScreen(Screen[None]):
    """A map as a table: each cell says its value, brackets mark what was asked about or is wrong."""

    BINDINGS: ClassVar[list[BindingType]] = [("n", "next_map", "next map"), *BACK]

    def __init__(self, maps: list[HeatMap]) -> None:
        super().__init__()
        self._maps, self._at = maps, 0

    def compose(self) -> ComposeResult:
        yield Header()
        yield DataTable(cursor_type="cell", fixed_columns=1)
        yield Static(id="detail")
        yield Footer()

    def on_mount(self) -> None:
        self._draw()

    def _draw(self) -> None:
        drawn = self._maps[self._at]
        table = self.query_one(DataTable)
        table.clear(columns=True)
        table.add_columns(Text(f"{drawn.down} \\ {drawn.across}"), *(Text(name) for name in drawn.columns))
        for name, cells in drawn.rows:
            shown = (Text(f"[{cell.text}]" if cell.is_marked else cell.text, "bold" if cell.is_marked else "")
                     for cell in cells)  # fmt: skip
            table.add_row(Text(name), *shown)
        self.sub_title = drawn.title

    def on_data_table_cell_highlighted(self, event: DataTable.CellHighlighted) -> None:
        row, column = event.coordinate
        name, cells = self._maps[self._at].rows[row]
        detail = cells[column - 1].detail if column else self._maps[self._at].note
        self.query_one("#detail", Static).update(Text(printable_text(detail or name)))

    def action_next_map(self) -> None:
        self._at = (self._at + 1) % len(self._maps)
        self._draw()
