"""The program that shows a session in a terminal."""

from __future__ import annotations

from typing import ClassVar, final

from rich import text
from textual import app, binding, containers, screen, widgets, worker

from hocket._base import showing, texts
from hocket.observe.top import looking, tables

PAGES = ("Workers", "Functions", "Actors", "Memory", "Training", "Runs", "Searches")
LOOK_SECONDS = 1.0


@final
class StackScreen(screen.ModalScreen[None]):
    """The stacks of a process, above the tables."""

    BINDINGS: ClassVar[list[binding.BindingType]] = [("escape,q,enter", "dismiss", "Back")]
    DEFAULT_CSS = """
    StackScreen { align: center middle; }
    StackScreen VerticalScroll { width: 90%; height: 80%; border: solid $accent; background: $surface; }
    """

    def __init__(self, title: str, stack: str) -> None:
        super().__init__()
        self._title = title
        self._stack = stack

    def compose(self) -> app.ComposeResult:
        """Lay out the stacks."""
        with containers.VerticalScroll() as box:
            box.border_title = self._title
            yield widgets.Static(text.Text(self._stack), id="stack")


@final
class Top(app.App[None]):
    """The program, which shows a session until the user quits.

    Args:
        look: The source of the data.
    """

    TITLE = "hocket top"
    ENABLE_COMMAND_PALETTE = False
    CSS = "#headline, .remarks { height: auto; padding: 0 1; } .remarks { color: $warning; } DataTable { height: 1fr; }"
    BINDINGS: ClassVar[list[binding.BindingType]] = [
        ("q", "quit", "Quit"),
        ("p", "pause", "Pause"),
        ("s", "sort", "Sort by the next column"),
        ("r", "reverse", "Other way round"),
        *((str(number), f"turn('{name}')", name) for number, name in enumerate(PAGES, 1)),
    ]

    def __init__(self, look: looking.Look) -> None:
        super().__init__()
        self._look = look
        self._view = looking.View(None, "", {})
        self._is_paused = False
        #: For each page, the column to sort by, and whether the greatest comes first.
        self._order: dict[str, tuple[int, bool]] = {}

    def compose(self) -> app.ComposeResult:
        """Lay out the pages."""
        yield widgets.Static(id="headline")
        with widgets.TabbedContent():
            for name in PAGES:
                with widgets.TabPane(name, id=name):
                    yield widgets.Static(classes="remarks", id=f"{name}-remarks")
                    yield widgets.DataTable(id=f"{name}-table", cursor_type="row", zebra_stripes=True)
        yield widgets.Footer()

    def on_mount(self) -> None:
        """Read the data now, and then every `LOOK_SECONDS`."""
        self.set_interval(LOOK_SECONDS, self._begin_look)
        self._begin_look()

    def _begin_look(self) -> None:
        if not self._is_paused:
            self.run_worker(self._look_once, thread=True, group="look", exclusive=True)

    def _look_once(self) -> None:
        view = self._look.look()
        if not worker.get_current_worker().is_cancelled:
            self.call_from_thread(self._show, view)

    def _show(self, view: looking.View) -> None:
        self._view = view
        paused = "[paused] " if self._is_paused else ""
        self.query_one("#headline", widgets.Static).update(text.Text(paused + view.headline))
        for name in PAGES:
            self._fill(name, view.tables.get(name) or tables.Table(()))

    def _fill(self, name: str, found: tables.Table) -> None:
        if name in self._order and found.columns:
            at, descending = self._order[name]
            found.sort(at, descending=descending)
        remarks = "\n".join(texts.escape(texts.shorten(remark, showing.MOST_TEXT)) for remark in found.remarks)
        self.query_one(f"#{name}-remarks", widgets.Static).update(text.Text(remarks))
        shown: widgets.DataTable[text.Text] = self.query_one(f"#{name}-table", widgets.DataTable)
        row = shown.cursor_row
        shown.clear(columns=True)
        for number, column in enumerate(found.columns):
            mark = {None: "", True: " v", False: " ^"}[self._get_direction(name, number)]
            shown.add_column(text.Text(column.name + mark))
        for values in found.rows:
            cells = zip(found.columns, found.show(values), strict=True)
            shown.add_row(*(text.Text(cell, justify="right" if one.is_number else "left") for one, cell in cells))
        shown.move_cursor(row=min(row, max(0, len(found.rows) - 1)))

    def _get_direction(self, name: str, column: int) -> bool | None:
        at, descending = self._order.get(name, (-1, False))
        return descending if at == column else None

    @property
    def _page(self) -> str:
        return self.query_one(widgets.TabbedContent).active

    def action_turn(self, name: str) -> None:
        """Turn to a page."""
        self.query_one(widgets.TabbedContent).active = name
        self.query_one(f"#{name}-table", widgets.DataTable).focus()

    def action_pause(self) -> None:
        """Pause, or resume."""
        self._is_paused = not self._is_paused
        self._show(self._view)

    def action_sort(self) -> None:
        """Sort by the next column of the page."""
        found = self._view.tables.get(self._page)
        if found is not None and found.columns:
            at = (self._order.get(self._page, (-1, False))[0] + 1) % len(found.columns)
            self._order[self._page] = at, found.columns[at].is_number
            self._fill(self._page, found)

    def action_reverse(self) -> None:
        """Sort the other way round."""
        found, order = self._view.tables.get(self._page), self._order.get(self._page)
        if found is not None and order is not None:
            self._order[self._page] = order[0], not order[1]
            self._fill(self._page, found)

    def on_data_table_row_selected(self, event: widgets.DataTable.RowSelected) -> None:
        """Show the stacks of the selected process."""
        found = self._view.tables.get(self._page)
        if found is None or found.pid_at is None or self._view.pid is None:
            return
        pid = found.rows[event.cursor_row][found.pid_at]
        if pid is not None:
            self.push_screen(StackScreen(f"Process {pid}", self._look.read_stack(self._view.pid, pid)))
