"""The replay of a search's log into a new search, which then goes on from the log's end.

The new searcher and scheduler see all past events in their order. The log has the decisions of that time, so new ones
do not count. The search's settings may have changed: more samples, another stop rule or scheduler, a narrower space.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hocket.tune import configs, errors
from hocket.tune import trial as trials
from hocket.tune.run import controls, live_trial
from hocket.tune.run import search as searches
from hocket.tune.worker import orders


def replay(search: searches.Search, records: Sequence[Mapping[str, Any]], resume: configs.ResumeConfig) -> None:
    """Bring a new search to the state at the end of the records, and decide about unfinished trials."""
    records = [*records, *_revive(search, records, resume)]
    revived = Counter(record["id"] for record in records if record["event"] == "revive")
    search.is_replaying = True
    undone: dict[str, controls.Act] = {}
    for record in records:
        event = record["event"]
        try:
            if event == "end" and revived[record["id"]]:  # it goes on later, so treat the end as a failure
                revived[record["id"]] -= 1
                _retry(search, record)
            elif event in _HANDLERS:
                _HANDLERS[event](search, record)
        except KeyError as error:
            raise errors.TuneError(
                f"The log of the search is damaged: its record {record!r} does not fit the records before it. Has a "
                "part of the log been removed?"
            ) from error
        if event in ("start", "pause", "exploit", "retry", "end"):
            undone.pop(record["id"], None)
        undone.update({act[1]: act for act in record.get("acts") or ()})
    search.is_replaying = False
    for act in undone.values():
        _catch_up(search, act)
    _resume(search, resume)


def find_states(records: Sequence[Mapping[str, Any]]) -> Sequence[Sequence[object]]:
    """Return the last saved states of callbacks."""
    return next((record["states"] for record in reversed(records) if record["event"] == "callbacks"), ())


def _catch_up(search: searches.Search, act: controls.Act) -> None:
    """Do an action that the log has, but that was not carried out."""
    live = search.live.get(act[1])
    if live is None:
        return
    if live.trial.status is trials.Status.RUNNING:
        live.trial.status = trials.Status.PENDING  # its process is gone
    if act[0] == "pause":
        search.log.append("pause", id=act[1])
        live.trial.status = trials.Status.PAUSED
    else:
        with contextlib.suppress(errors.TuneError):  # without the checkpoint it waited for, it goes on from its own
            search.controls.perform(act)


def _revive(
    search: searches.Search, records: Sequence[Mapping[str, Any]], resume: configs.ResumeConfig
) -> list[dict[str, object]]:
    """Log which finished trials go on; return these records."""
    ended = {record["id"]: record for record in records if record["event"] == "end"}
    for record in records:
        if record["event"] == "revive":
            ended.pop(record["id"], None)  # `replay` refuses a log that revives a trial before its end
        elif record["event"] == "end":
            ended[record["id"]] = record
    wanted = {trials.Status.ERROR: resume.errored, trials.Status.TERMINATED: resume.finished}
    found = []
    for trial_id, record in ended.items():
        kind = wanted[trials.Status(record["status"])]
        if kind is not configs.ResumeType.SKIP:
            revival = {"id": trial_id, "restarts": kind is configs.ResumeType.RESTART}
            search.log.append("revive", **revival)
            found.append({"event": "revive", **revival})
    return found


def _take_revival(search: searches.Search, record: Mapping[str, Any]) -> None:
    live = search.live[record["id"]]
    live.failures = 0
    if record["restarts"]:
        live.checkpoints.clear()
    live.rewind()
    live.trial.status = trials.Status.PENDING


def _add(search: searches.Search, record: Mapping[str, Any]) -> None:
    trial = trials.Trial(record["id"], record["number"], record["config"], record["tag"])
    search.proposals.restore(trial.number, trial.trial_id, trial.config)
    search.source.add(trial, record["folder"])


def _start(search: searches.Search, record: Mapping[str, Any]) -> None:
    live = search.live[record["id"]]
    search.settings.scheduler.choose_trial_to_run(search.controls)  # some schedulers note their choices there
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
    live.trial.last_result = live.complete(report, search.settings.metric)
    if report.checkpoint is not None:
        search.register(live, report.checkpoint)
        search.prune(live)
    search.proposals.hear_report(live.trial, live.trial.last_result)
    # The stop rule may be new, about metrics that were not reported then.
    with contextlib.suppress(errors.TuneError, LookupError):
        search.settings.stopper(live.trial.trial_id, live.trial.last_result)
    is_ruled = any(
        act[:2] == ["stop", live.trial.trial_id] and act[2] != live_trial.BY_SCHEDULER for act in record["acts"] or ()
    )
    live.trial.last_result["done"] = is_ruled
    if not is_ruled:
        search.decide(live, live.trial.last_result)


def _save(search: searches.Search, record: Mapping[str, Any]) -> None:
    live = search.live[record["id"]]
    search.register(live, record["checkpoint"])
    search.prune(live)


def _pause(search: searches.Search, record: Mapping[str, Any]) -> None:
    search.live[record["id"]].trial.status = trials.Status.PAUSED


def _exploit(search: searches.Search, record: Mapping[str, Any]) -> None:
    live = search.live[record["id"]]
    latest = live_trial.SavedCheckpoint(record["checkpoint"], record["iteration"], record["seconds"] or 0.0, {})
    search.controls.take_exploit(live, latest, record["config"], record["tag"], record["checkpoint"])


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
    "revive": _take_revival,
    "end": _end,
}


def _resume(search: searches.Search, resume: configs.ResumeConfig) -> None:
    """Decide about the unfinished trials."""
    for live in list(search.live.values()):
        if resume.unfinished is configs.ResumeType.SKIP:
            search.leave_out(live)
        elif resume.unfinished is configs.ResumeType.RESTART:
            live.checkpoints.clear()
            live.rewind()
            live.trial.status = trials.Status.PENDING
        elif live.trial.status is trials.Status.RUNNING:
            live.trial.status = trials.Status.PENDING
