"""The page: what it is made of, and how it follows the fleet.

Each browser has a page of its own with a timer. A timer changes only what differs from what the
page shows; what costs most is computed once for all pages (`Shown`).
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from nicegui import ui

from toolkit.dashboard import charts, rows, style
from toolkit.dashboard.colours import ACTIVITIES
from toolkit.dashboard.details import Steer, show_details
from toolkit.observing import words
from toolkit.observing.observer import Observer
from toolkit.observing.status import Activity

PACE_SECONDS = 1.0  # between two looks of a page
CHART_SECONDS = 2.0
LARGE, LARGE_SECONDS = 50, 4.0  # from so many devices on, table and charts follow at this pace
PAGE_ROWS = 25  # of the table


class Shown:
    """What all pages show, made anew when a message has come, and at most at the page's pace."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self._made: tuple[int, int] = (-1, -1)
        self.rows: list[dict[str, Any]] = []
        self.glance = rows.glance(observer.status, 0)

    def look(self) -> None:
        fleet, now_ms = self.observer.status, int(1000 * time.time())
        key = self.observer.changes, now_ms // 1000
        if len(fleet.devices) >= LARGE:
            key = 0, int(now_ms / 1000 / LARGE_SECONDS)
        if key == self._made:
            return
        self._made = key
        self.glance = rows.glance(fleet, now_ms)
        self.rows = [
            rows.device_row(fleet, device, self.observer.curve(device), now_ms)
            for _, device in sorted(fleet.devices.items())
        ]

    def measures(self) -> list[str]:
        """Returns the measures of the devices, the most frequent first."""
        devices = self.observer.status.devices.values()
        return [m for m, _ in Counter(d.measure for d in devices if d.measure).most_common()]

    def lines(self, measure: str) -> list[charts.Line]:
        """Returns the curves of all devices that publish a measure."""
        curves = dict(self.observer.curves)
        return [
            charts.Line(name, device.about.get("profile", ""), curves[name, measure])
            for name, device in sorted(self.observer.status.devices.items())
            if (name, measure) in curves
        ]


class Page:
    """What one browser shows."""

    def __init__(self, shown: Shown, steer: Steer | None) -> None:
        self._shown = shown
        self._steer = steer
        self._charts_at = 0.0
        self._charts_of: tuple[Any, ...] = ()
        self._dark = ui.dark_mode(None)
        ui.add_css(style.CSS)
        self._header()
        with ui.column().classes("wide"):
            self._problem = ui.label().classes("panel").props("role=alert")
            self._problem.set_visibility(False)
            self._glance()
            with ui.element("div").classes("pair"):
                self._learning = self._chart("Learning curves", "curves", 320)
                self._rounds = self._chart(
                    "Rounds: seconds each, striped where one was late", "rounds", 320
                )
            self._devices()
            with ui.element("div").classes("pair"):
                self._leaving()
                self._refusals = self._chart("Refusals by reason", "refusals", 190)
                self._no_refusals = self._note_in(self._refusals, "Nothing has been refused.")
        self.follow()
        ui.timer(PACE_SECONDS, self.follow)

    # --- what it is made of -----------------------------------------------------------------

    def _header(self) -> None:
        with ui.header().classes("items-center q-px-md q-py-sm"):
            ui.label("stemshare").classes("text-weight-bold").style("color: var(--soft)")
            ui.label(self._shown.observer.status.fleet).classes("text-weight-bold text-h6")
            self._status = ui.badge("").props("id=status")
            self._how = ui.label().classes("note hide-small")
            ui.space()
            ui.button(icon="contrast", on_click=self._next_theme).props(
                'flat round dense aria-label="light or dark" title="light or dark"'
            )

    def _next_theme(self) -> None:
        """As the browser prefers, dark, light, and again."""
        self._dark.value = {None: True, True: False, False: None}[self._dark.value]

    def _glance(self) -> None:
        with ui.element("div").classes("glance"):
            with ui.column().classes("panel"):
                ui.label("Round").classes("title")
                self._round = ui.label().classes("figure").props("id=round")
                self._part = ui.linear_progress(0, show_value=False, size="5px").props("rounded")
                self._round_note = ui.label().classes("note")
            with ui.column().classes("panel"):
                ui.label("Devices").classes("title")
                self._activities = {}
                for activity in Activity:
                    with ui.element("div").classes("row-line") as line:
                        mark = f"color: {ACTIVITIES[activity]}"
                        with ui.element("span"):
                            ui.label(words.SYMBOLS[activity]).classes("mark").style(mark)
                            ui.label(activity).style("display: inline")
                        number = ui.label().classes("text-weight-bold")
                    self._activities[activity] = line, number
            with ui.column().classes("panel"):
                ui.label("Mean score").classes("title")
                self._scores = ui.column().classes("w-full").style("gap: 4px")
                self._scores_of: Any = None
            with ui.column().classes("panel"):
                ui.label("Traffic of the aggregator").classes("title")
                self._traffic = ui.label().classes("figure")
                self._traffic_note = ui.label().classes("note")
            with ui.column().classes("panel"):
                ui.label("Refused").classes("title")
                self._refused = ui.label().classes("figure")
                self._refused_note = ui.label().classes("note")

    def _chart(self, title: str, name: str, height: int) -> ui.echart:
        with ui.column().classes("panel"):
            ui.label(title).classes("title")
            chart = ui.echart({}).style(f"height: {height}px; width: 100%")
            return chart.props(f'id={name} role=img aria-label="{title}"')

    def _note_in(self, chart: ui.echart, text: str) -> ui.label:
        """A sentence that stands in place of a chart while that is empty."""
        assert chart.parent_slot is not None
        with chart.parent_slot:
            return ui.label(text).classes("note")

    def _devices(self) -> None:
        with ui.column().classes("panel"):
            with ui.row().classes("w-full items-center justify-between"):
                ui.label("Devices").classes("title")
                wanted = ui.input(placeholder="find a device").props(
                    'dense outlined clearable aria-label="find a device"'
                )
            self._table = (
                ui.table(
                    columns=rows.columns(),
                    rows=[],
                    row_key="name",
                    pagination={"rowsPerPage": PAGE_ROWS, "sortBy": "name"},
                )
                .classes("w-full")
                .props(':grid="Quasar.Screen.lt.sm" flat dense id=devices')
                .bind_filter_from(wanted, "value")
            )
            for name, template in style.SLOTS.items():
                self._table.add_slot(name, template)
            self._table.on(
                "open", lambda e: show_details(self._shown.observer, e.args, self._steer)
            )

    def _leaving(self) -> None:
        with ui.column().classes("panel"):
            ui.label("What leaves a device: these tensors, and no data").classes("title")
            columns = [
                {"name": name, "label": label, "field": name, "align": align}
                for name, label, align in (
                    ("name", "Tensor", "left"),
                    ("shape", "Shape", "left"),
                    ("bytes", "As float32", "right"),
                    ("devices", "Devices", "right"),
                )
            ]
            self._tensors = ui.table(columns=columns, rows=[], row_key="name", pagination=8)
            self._tensors.classes("w-full").props("flat dense id=tensors")

    # --- how it follows the fleet -------------------------------------------------------------

    def follow(self) -> None:
        """Shows what has changed."""
        shown, observer = self._shown, self._shown.observer
        shown.look()
        now = shown.glance
        self._problem.set_text(f"No link to the broker: {observer.problem}")
        self._problem.set_visibility(bool(observer.problem))
        self._status.set_text(now.status)
        self._status.style(f"background: {now.status_colour} !important")
        self._how.set_text(now.how)
        self._round.set_text(now.round)
        self._round_note.set_text(now.round_note)
        self._part.set_value(now.part)
        self._part.set_visibility(bool(now.part))
        for activity, (line, number) in self._activities.items():
            number.set_text(str(now.activities.get(activity, 0)))
            line.set_visibility(activity is not Activity.UNKNOWN or activity in now.activities)
        self._traffic.set_text(now.traffic)
        self._traffic_note.set_text(now.traffic_note)
        self._refused.set_text(str(now.refused))
        self._refused_note.set_text(now.refused_note)
        self._follow_scores(now.scores)
        large, since = len(shown.rows) >= LARGE, time.monotonic() - self._charts_at
        due = since >= (LARGE_SECONDS if large else CHART_SECONDS) or not self._charts_of
        if (due or not large) and self._table.rows != shown.rows:
            self._table.rows = shown.rows
        if due:
            self._follow_charts()

    def _follow_scores(self, scores: Any) -> None:
        if scores == self._scores_of:
            return
        self._scores_of = scores
        self._scores.clear()
        with self._scores:
            for name, text in scores[:5] or [("nobody has been tested yet", "")]:
                with ui.element("div").classes("row-line"):
                    ui.label(name).classes("note")
                    ui.label(text).classes("text-weight-bold").style("white-space: nowrap")

    def _follow_charts(self) -> None:
        observer = self._shown.observer
        fleet = observer.status
        key = (observer.changes,)
        self._charts_at = time.monotonic()
        if key == self._charts_of:
            return
        self._charts_of = key
        measures = self._shown.measures()
        measure = measures[0] if measures else ""
        lines = self._shown.lines(measure)
        _replace(self._learning, charts.learning(lines, measure))
        _replace(self._rounds, charts.rounds(tuple(observer.rounds.values())))
        _replace(self._refusals, charts.refusals(dict(fleet.refused)))
        self._refusals.set_visibility(bool(fleet.refused))
        self._no_refusals.set_visibility(not fleet.refused)
        newest = max((line.curve.points[-1][0] for line in lines), default=0)
        text = f"Learning curves of {len(lines)} devices up to round {newest}"
        self._learning.props(f'aria-label="{text}"')
        tensors = rows.leaving(fleet)
        if self._tensors.rows != tensors:
            self._tensors.rows = tensors


def _replace(chart: ui.echart, options: dict[str, Any]) -> None:
    """Gives a chart new options, if they are new."""
    if dict(chart.options) != options:
        chart.options.clear()
        chart.options.update(options)
        chart.update()
