"""Keeps the record of what happens to an aggregator: its counters, its log and its report."""

from __future__ import annotations

from broker.aggregator.answers import LONGEST_LOGGED, logged
from broker.aggregator.records.counters import Counters
from broker.aggregator.records.report import Report
from broker.aggregator.records.scraped import Scraped
from broker.log import Log
from broker.merging.coordinator import Closed, Limited
from broker.protocol.messages import DeviceState, Refused, Update

SILENT_LOGGED = 10  # names of devices in one line


class Record:
    """One method for each thing that happens."""

    def __init__(self, log: Log) -> None:
        self.counters = Counters()
        self.report = Report()
        self.scraped = Scraped()
        self._log = log

    def accepted(self, update: Update, *, bytes: int, behind: int) -> None:
        """An update counts; it started from the θ_shared of `behind` merges ago."""
        self.counters.updates_accepted += 1
        self.report.accepted(update, bytes=bytes, behind=behind)
        self._log.event(
            "accepted", device=update.device, round=update.round, samples=update.samples
        )

    def refused(self, device: str, refusal: Refused, message: Update | DeviceState | None) -> None:
        self.counters.refused[refusal.reason] += 1
        round = message.round if isinstance(message, Update) else -1
        self.report.refused(device, refusal.reason, round)
        name = device[:LONGEST_LOGGED]
        self._log.event("refused", device=name, reason=refusal.reason, text=str(refusal))

    def born(self, state: DeviceState, *, is_news: bool) -> None:
        """A birth was accepted; `is_news`: the device was not there, or training, before."""
        self.counters.births_accepted += 1
        self.report.there(state.device)
        profile = state.about.get("profile", "")
        self.scraped.born(state.device, str(profile)[:LONGEST_LOGGED])
        if is_news:
            event = "waiting" if state.waiting else "joined"
            self._log.event(event, device=state.device, **logged(state))

    def left(self, device: str, *, was_there: bool) -> None:
        self.report.gone(device)
        self.scraped.gone(device)
        if was_there:
            self._log.event("left", device=device)

    def closed(self, closed: Closed, *, round: int, quorum: int, seconds: float) -> None:
        """A round was merged, or extended because fewer than `quorum` devices had sent."""
        counters, log = self.counters, self._log
        counters.merge_seconds += seconds
        if not closed.merged:
            counters.rounds_extended += 1
            log.event("extended", round=round, devices=closed.devices, quorum=quorum)
            return
        counters.rounds_merged += 1
        counters.tensors_held_back += len(closed.held_back)
        self.report.closed(round, closed.devices, closed.silent)
        log.event("merged", round=round, devices=closed.devices, seconds=seconds)
        if closed.silent:
            counters.devices_silent += len(closed.silent)
            log.event("silent", devices=list(closed.silent[:SILENT_LOGGED]))
        if closed.held_back:
            log.event("held_back", tensors=list(closed.held_back))

    def limited(self, limited: Limited, round: int) -> None:
        self.counters.count_limited(limited, round, self._log)
