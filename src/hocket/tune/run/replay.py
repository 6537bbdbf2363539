"""Reading the log of a search into a new one, so that it goes on where it was.

The searcher and the scheduler, which are new, are shown what happened in the order in which it did. Their decisions of
then are in the log, so those of now do not count; and what the search was told to do may have changed since: more
samples, another stop rule, another scheduler, a narrower space.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hocket.tune import configs
from hocket.tune import trial as trials
from hocket.tune.run import live_trial
from hocket.tune.run import search as searches
from hocket.tune.worker import orders


def replay(search: searches.Search, records: Iterable[Mapping[str, Any]], resume: configs.ResumeConfig) -> None:
    """Bring a new search to where the records end."""
    search.is_replaying = True
    for record in records:
        handler = _HANDLERS.get(record["event"])
        if handler is not None:
            handler(search, record)
    search.is_replaying = False
    _resume(search, resume)


def _add(search: searches.Search, record: Mapping[str, Any]) -> None:
    trial = trials.Trial(record["id"], record["number"], record["config"], record["tag"])
    search.proposals.restore(trial.number, trial.trial_id, trial.config)
    search.add(trial, record["folder"])


def _start(search: searches.Search, record: Mapping[str, Any]) -> None:
    live = search.live[record["id"]]
    if record["checkpoint"] is None:
        live.checkpoints.clear()
    live.rewind()
    live.trial.status = trials.Status.RUNNING
    live.attempt = record["attempt"] + 1


def _introduce(search: searches.Search, record: Mapping[str, Any]) -> None:
    search.live[record["id"]].introduction = orders.Introduction(record["pid"], record["host"])


def _report(search: searches.Search, record: Mapping[str, Any]) -> None:
    live = search.live[record["id"]]
    report = orders.Report(record["metrics"], record["seconds"], record["time"], record["checkpoint"])
    live.trial.last_result = search.complete(live, report)
    if report.checkpoint is not None:
        search.keep(live, report.checkpoint)
    search.proposals.hear_report(live.trial, live.trial.last_result)
    search.decide(live, live.trial.last_result)
    live.fate, live.reason = None, ""


def _save(search: searches.Search, record: Mapping[str, Any]) -> None:
    search.keep(search.live[record["id"]], record["checkpoint"])


def _pause(search: searches.Search, record: Mapping[str, Any]) -> None:
    search.live[record["id"]].trial.status = trials.Status.PAUSED


def _exploit(search: searches.Search, record: Mapping[str, Any]) -> None:
    live = search.live[record["id"]]
    latest = live_trial.SavedCheckpoint(record["checkpoint"], record["iteration"], record["seconds"], {})
    search.take_exploit(live, latest, record["config"], record["tag"], record["checkpoint"])


def _retry(search: searches.Search, record: Mapping[str, Any]) -> None:
    live = search.live[record["id"]]
    live.failures += 1
    live.trial.status = trials.Status.PENDING


def _end(search: searches.Search, record: Mapping[str, Any]) -> None:
    live = search.live[record["id"]]
    live.reason = record["reason"]
    search.note_end(live, trials.Status(record["status"]), record["reason"], live.trial.status)


_HANDLERS = {
    "trial": _add,
    "start": _start,
    "process": _introduce,
    "report": _report,
    "save": _save,
    "pause": _pause,
    "exploit": _exploit,
    "retry": _retry,
    "end": _end,
}


def _resume(search: searches.Search, resume: configs.ResumeConfig) -> None:
    """Decide what becomes of the trials that had not ended."""
    for live in list(search.live.values()):
        if resume.unfinished is configs.ResumeType.SKIP:
            search.leave_out(live)
        elif resume.unfinished is configs.ResumeType.RESTART:
            live.checkpoints.clear()
            live.rewind()
            live.trial.status = trials.Status.PENDING
        elif live.trial.status is trials.Status.RUNNING:
            live.trial.status = trials.Status.PENDING
