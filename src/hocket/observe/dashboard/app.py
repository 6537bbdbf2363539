"""The routes, all read-only."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from importlib import resources

from starlette import applications, requests, responses, routing

from hocket._base import showing
from hocket.observe import parts, searches, training, watching
from hocket.observe.dashboard import guards

TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}
"""The media types of the files served from `static`, by suffix."""

MAX_WIDTH = 8192
"""The most pixels in the width of a drawing; no screen has more."""


def load_pages() -> dict[str, responses.Response]:
    """Return the files of `static` and `vendor`, by path."""
    room = resources.files("hocket.observe")
    found = {}
    for folder, place in ((room / "dashboard" / "static", "/static"), (room / "vendor", "/static/vendor")):
        for file in folder.iterdir():
            kind = TYPES.get(file.name[file.name.rfind(".") :])
            if file.is_file() and kind is not None:
                found[f"{place}/{file.name}"] = responses.Response(file.read_bytes(), media_type=kind)
    found["/"] = found.pop("/static/index.html")
    return found


KEPT_SECONDS = 0.8
"""Seconds for which an answer to the same request is reused, so that several tabs cost as much as one."""

Answer = Callable[[requests.Request], responses.Response]


def keep(answer: Answer) -> Answer:
    """Return a function that reuses an answer for `KEPT_SECONDS`."""
    kept: dict[str, tuple[float, responses.Response]] = {}
    lock = threading.Lock()

    def answer_kept(request: requests.Request) -> responses.Response:
        key = request.url.query
        with lock:  # simultaneous requests wait for one answer
            now = time.monotonic()
            for old in [one for one, (at, _) in kept.items() if now - at > KEPT_SECONDS]:
                del kept[old]
            if key not in kept:
                kept[key] = now, answer(request)
            found = kept[key][1]
        return responses.Response(found.body, found.status_code, media_type=found.media_type)

    return answer_kept


class Pages:
    """The data of the pages."""

    def __init__(self, watch: watching.Watch, runs: training.Runs, found: searches.Searches) -> None:
        self._watch = watch
        self._runs = runs
        self._searches = found
        self._parts = parts.Parts()
        #: The time of the last request, by `time.monotonic`.
        self.asked_at = time.monotonic()

    def list_sessions(self, request: requests.Request) -> responses.Response:
        """Answer with the pids of the sessions."""
        return self._answer([{"pid": found.driver_pid} for found in self._watch.list_found()])

    def show_now(self, request: requests.Request) -> responses.Response:
        """Answer with the present state of a session: ``?pid=``."""
        try:
            pid = int(request.query_params["pid"])
        except (KeyError, ValueError):
            return _refuse()
        return self._answer(self._watch.describe(pid))

    def draw(self, request: requests.Request) -> responses.Response:
        """Answer with events: ``?pid=``, ``seconds=`` (0 for all), ``width=`` (pixels), and optionally ``end=``."""
        given = request.query_params
        try:
            pid, seconds, width = int(given["pid"]), float(given["seconds"]), int(given["width"])
            end = float(given["end"]) if "end" in given else None
        except (KeyError, ValueError):
            return _refuse()
        is_finite = math.isfinite(seconds) and (end is None or math.isfinite(end))
        if not (is_finite and seconds >= 0 and 0 < width <= MAX_WIDTH):
            return _refuse()
        return self._answer(self._watch.draw(pid, seconds, width, end))

    def show_stack(self, request: requests.Request) -> responses.Response:
        """Answer with the stacks of a process: ``?pid=`` of the driver, ``process=``."""
        return self._ask_process(request, self._watch.read_stack)

    def sample(self, request: requests.Request) -> responses.Response:
        """Answer with samples of a process's stacks in a second: ``?pid=`` of the driver, ``process=``."""
        return self._ask_process(request, self._watch.sample)

    def _ask_process(self, request: requests.Request, ask: Callable[[int, int], object]) -> responses.Response:
        try:
            pid, process = int(request.query_params["pid"]), int(request.query_params["process"])
        except (KeyError, ValueError):
            return _refuse()
        return self._answer(ask(pid, process))

    def show_parts(self, request: requests.Request) -> responses.Response:
        """Answer with the servers, executions and meshes of a session: ``?pid=``."""
        try:
            pid = int(request.query_params["pid"])
        except (KeyError, ValueError):
            return _refuse()
        is_known = pid in [found.driver_pid for found in self._watch.list_found()]
        return self._answer(self._parts.describe(pid) if is_known else None)

    def list_searches(self, request: requests.Request) -> responses.Response:
        """Answer with a line for each search."""
        return self._answer(self._searches.list_searches([found.driver_pid for found in self._watch.list_found()]))

    def show_search(self, request: requests.Request) -> responses.Response:
        """Answer with a search's data: ``?path=``, ``width=`` of a plot (pixels), and optionally ``metric=``."""
        given = request.query_params
        try:
            path, width = given["path"], int(given["width"])
        except (KeyError, ValueError):
            return _refuse()
        if not 0 < width <= MAX_WIDTH:
            return _refuse()
        return self._answer(self._searches.describe(path, given.get("metric"), width))

    def list_runs(self, request: requests.Request) -> responses.Response:
        """Answer with a line for each run."""
        return self._answer(self._runs.list_runs([found.driver_pid for found in self._watch.list_found()]))

    def show_run(self, request: requests.Request) -> responses.Response:
        """Answer with a run's data: ``?path=``, ``width=`` of a plot (pixels)."""
        try:
            path, width = request.query_params["path"], int(request.query_params["width"])
        except (KeyError, ValueError):
            return _refuse()
        return self._answer(self._runs.describe(path, width)) if 0 < width <= MAX_WIDTH else _refuse()

    def _answer(self, found: object) -> responses.Response:
        self.asked_at = time.monotonic()
        if found is None:
            return responses.PlainTextResponse("There is no such session, process, run or search.", 404)
        return responses.Response(showing.encode(found), media_type="application/json")


def _refuse() -> responses.Response:
    return responses.PlainTextResponse("A parameter is missing or invalid.", 400)


def build(pages: Pages, *, token: str, is_own: Callable[[bytes], bool]) -> guards.Guards:
    """Return the application behind its guards."""
    asked: dict[str, Answer] = {
        "/api/sessions": keep(pages.list_sessions),
        "/api/now": keep(pages.show_now),
        "/api/events": keep(pages.draw),
        "/api/stack": pages.show_stack,
        "/api/flame": pages.sample,
        "/api/runs": keep(pages.list_runs),
        "/api/run": keep(pages.show_run),
        "/api/parts": keep(pages.show_parts),
        "/api/searches": keep(pages.list_searches),
        "/api/search": keep(pages.show_search),
    }
    files = load_pages()
    routes = [routing.Route(path, answer) for path, answer in asked.items()]
    routes += [routing.Route(path, _serve(file)) for path, file in files.items()]
    return guards.Guards(applications.Starlette(routes=routes), token=token, is_own=is_own, pages=files, paths=asked)


def _serve(file: responses.Response) -> Answer:
    return lambda request: responses.Response(file.body, media_type=file.media_type)
