"""Write docs/parity.md: which tests of a feature pass on which engine, from the results of the test runs.

Each engine's results are junit files that pytest wrote: ``FOLDER/local*.xml``, ``FOLDER/inprocess*.xml`` and
``FOLDER/ray*.xml``. A test that was left out has the reason in its result, as the engine's `limits` or the test's
marker gave it. What failed was run once more, by itself: ``FOLDER/ray-again.xml``, and the page says so.

    python tools/parity.py FOLDER docs/parity.md
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

import prose

from hocket.testing import contract

ENGINES = ("local", "inprocess", "ray")

CONTRACT = {
    "TaskContract": "Contract: tasks",
    "ValueContract": "Contract: values and waiting",
    "ErrorContract": "Contract: errors",
    "GeneratorContract": "Contract: generators",
    "AsyncContract": "Contract: asynchronous actors and awaiting",
    "ActorContract": "Contract: actors",
    "ActorLifeContract": "Contract: lives of actors",
    "CallContract": "Contract: calls",
    "CountedGeneratorContract": "Contract: generators with so many results",
    "EndsContract": "Contract: ends",
    "ResourceContract": "Contract: resources and placement groups",
    "EnvironmentContract": "Contract: runtime environments and placement",
    "ProcessContract": "Contract: processes, interrupts, cancelling",
    "ProcessActorContract": "Contract: actors in processes",
    "ProcessCallContract": "Contract: calls between processes",
    "ProcessEndsContract": "Contract: ends of processes and of what they hold",
    "DirectCallContract": "Contract: calls between workers",
    "DeathContract": "Contract: deaths",
}
"""The parts of the contract suite, in the order of the page."""

SUITES = {"TestLocal": "local", "TestInProcess": "inprocess", "TestRay": "ray"}
"""On which engine a class of the contract suite runs, whatever the run was told."""

FEATURES = {
    "core.test_options": "Options of tasks and actors",
    "core.test_bad_input": "Messages for bad input",
    "core.test_unpicklable": "Values that cannot travel",
    "core.test_dag": "Graphs of tasks (DAG)",
    "core.test_ray_program": "A program written for Ray",
    "core.test_random_programs": "Random programs with deaths",
    "core.test_state": "State API and timeline",
    "core.test_life_cycle": "Start and end of sessions",
    "core.test_interrupts": "Ctrl-C",
    "core.test_places": "Where a session runs",
    "util.test_actor_pool": "ActorPool",
    "util.test_queue": "Queue",
    "util.test_multiprocessing": "multiprocessing.Pool",
    "util.test_joblib": "joblib",
    "util.test_metrics": "Metrics",
    "util.test_serialization": "Registered serializers",
    "util.test_lookup": "Named actors and addresses",
    "util.test_helpers": "Helpers of hocket.util",
    "train.test_torch_trainer": "Training with PyTorch",
    "train.test_reports": "Reports of a training",
    "train.test_failures": "Failures in a training",
    "train.test_checkpoint": "Checkpoints",
    "train.test_demo": "The demo",
    "train.test_configs": "Configurations of a training",
    "train.test_torch_tools": "Tools for PyTorch: precision, sharding, accumulation",
    "train.test_strategies": "Strategies: all-reduce, local SGD",
    "train.test_frameworks": "Lightning and transformers",
    "train.test_classic_trainer": "The trainer of 2022",
    "train.test_loaders": "Prepared loaders",
    "train.test_loader_recovery": "Loaders after kills, exact evaluation",
    "train.test_elastic": "Elastic groups",
    "train.test_preemption": "Notices of an end (SIGTERM)",
    "train.test_collective_faults": "Ranks that die or stay away in a collective",
    "train.test_train_collective": "Barriers and broadcasts of a training",
    "train.test_reported": "Lists of reported checkpoints",
    "train.test_uploads": "Uploads of checkpoints",
    "train.test_validation": "Validation of checkpoints",
    "train.test_no_shared_folder": "Checkpoints without a shared folder",
    "train.test_parcels": "Files between ranks and driver",
    "train.test_places": "Ranks on several machines",
    "train.test_rendezvous": "Where ranks of PyTorch meet",
    "train.test_cluster": "A cluster that loses nodes",
    "train.test_progress_display": "The progress display",
    "train.test_progress_model": "What the progress display knows",
    "train.test_loggers": "Loggers and curves",
    "train.test_parameter_server_strategy": "Trainers on parameter servers",
    "train.test_parameter_servers_tensorflow": "TensorFlow's own parameter servers",
    "ps.test_coordinator": "Parameter servers: scheduling",
    "ps.test_faults": "Parameter servers: deaths",
    "ps.test_datasets": "Parameter servers: datasets",
    "ps.test_variables": "Parameter servers: variables",
    "ps.test_gate": "Parameter servers: staleness",
    "ps.test_store": "Parameter servers: transactions",
    "ps.test_checkpoints": "Parameter servers: checkpoints and snapshots",
    "ps.test_synchronous": "Parameter servers: synchronous steps",
    "ps.test_remote": "Parameter servers: servers that are asked",
    "ps.test_nodes": "Parameter servers: several nodes",
    "ps.test_recommender": "Parameter servers: the recommender",
}
"""Names of test modules for people; a module that is not here has its own name, with capitals."""

SECOND = "-again"
"""How the name of a file ends that has the results of second tries."""

OWN = "It tests what only the local engine has"
"""How the reason begins for which tests/conftest.py leaves out what is `about_local`."""

_ENGINE_PARAMETER = re.compile(r"\[(local|inprocess|ray)(?:-|\])")


class Result(NamedTuple):
    feature: str
    test: str
    engine: str
    outcome: str
    """``passed``, ``failed`` or ``left out``."""
    reason: str
    is_second_try: bool = False


def read_results(path: Path, engine: str) -> Iterator[Result]:
    """Yield the results of one file, without those of tests that ran on another engine.

    The fixture `any_session` runs a test on more than the engine that the run is for, and names it:
    ``test_x[inprocess]`` in the local engine's results. A test that has an engine among parameters of its own has it in
    the results of every engine, Ray's too.
    """
    cases = list(ET.parse(path).getroot().iter("testcase"))  # noqa: S314 (pytest wrote it)
    names = {(case.get("classname", ""), case.get("name", "")) for case in cases}
    for case in cases:
        module, name = case.get("classname", ""), case.get("name", "")
        feature, runs_on = find_feature(module.removeprefix("tests."), name)
        found = _ENGINE_PARAMETER.search(name)
        asked = found.group(1) if found else ""
        if asked == engine:
            name = _ENGINE_PARAMETER.sub("[", name, count=1)
        elif asked and (module, name.replace(asked, engine, 1)) in names:
            continue
        if runs_on in {"", engine}:
            yield Result(feature, f"{module}::{name}", engine, *read_outcome(case))


def find_feature(module: str, test: str) -> tuple[str, str]:
    """Return the feature that a test belongs to, and the engine that it is for; empty if the run says it."""
    last = module.rpartition(".")[2]
    if last in SUITES:
        kind: type = contract.ProcessEngineContract
        function = test.partition("[")[0]
        owner = next(cls.__name__ for cls in kind.__mro__ if function in vars(cls))
        return CONTRACT[owner], SUITES[last]
    module = ".".join(part for part in module.split(".") if not part.startswith("Test"))
    return FEATURES.get(module, module.rpartition(".test_")[2].replace("_", " ").capitalize()), ""


def read_outcome(case: ET.Element) -> tuple[str, str]:
    """Return how a test ended, and why it was left out."""
    left_out = case.find("skipped")
    if left_out is not None:
        return "left out", re.sub(r"^(local|inprocess|ray): ", "", left_out.get("message", ""))
    is_bad = case.find("failure") is not None or case.find("error") is not None
    return ("failed" if is_bad else "passed"), ""


def read_folder(folder: Path) -> list[Result]:
    """Return the results of all engines; of what was run twice, the second."""
    found: dict[tuple[str, str], Result] = {}
    for engine in ENGINES:
        paths = sorted(folder.glob(f"{engine}*.xml"), key=lambda path: path.stem.endswith(SECOND))
        for path in paths:
            for result in read_results(path, engine):
                is_second = path.stem.endswith(SECOND)
                found[engine, result.test] = result._replace(is_second_try=is_second)
    return list(found.values())


def build_page(results: list[Result]) -> str:
    """Return the page."""
    table: dict[str, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    everything: dict[str, set[str]] = defaultdict(set)
    for result in results:
        table[result.feature][result.engine].append(result)
        everything[result.feature].add(name_alike(result.test))
    notes: dict[str, int] = {}
    order = [*CONTRACT.values(), *FEATURES.values()]
    rows = sorted(table, key=lambda name: (order.index(name) if name in order else len(order), name))
    lines = [f"| feature | {' | '.join(ENGINES)} |", "|---" * (len(ENGINES) + 1) + "|"]
    for feature in rows:
        cells = [format_cell(table[feature][engine], len(everything[feature]), notes) for engine in ENGINES]
        lines.append(f"| {feature} | {' | '.join(cells)} |")
    told = [f"{number}. {reason}" for reason, number in notes.items()]
    return prose.wrap("\n".join([describe_run(), "", *lines, "", "What is left out, and why:", "", *told, ""]))


def name_alike(test: str) -> str:
    """Return a test's name without the class that is another one on each engine."""
    return re.sub(r"^.*\.Test(Local|InProcess|Ray)::", "contract::", test)


def format_cell(results: list[Result], count: int, notes: dict[str, int]) -> str:
    """Return what a cell says, such as ``17 of 19 [1, 2]``; new reasons are added to the notes."""
    if not results:
        return "not run"
    passed = {name_alike(result.test) for result in results if result.outcome == "passed"}
    failed = {result.test for result in results if result.outcome == "failed"}
    reasons = {result.reason for result in results if result.outcome == "left out"}
    missing = count - len(passed) - len(failed) - sum(result.outcome == "left out" for result in results)
    if missing:
        reasons.add("It belongs to the contract of engines that have processes, or was not run.")
    text = f"all {count}" if len(passed) == count else f"{len(passed)} of {count}"
    if failed:
        text += f", **{len(failed)} failed**"
    if second := sum(result.is_second_try and result.outcome == "passed" for result in results):
        text += f", {second} at the second try"
    numbers = sorted(notes.setdefault(reason, len(notes) + 1) for reason in sorted(reasons))
    return f"{text} [{', '.join(map(str, numbers))}]" if numbers else text


def describe_run() -> str:
    """Return the head of the page: how it was made, from what."""
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)  # noqa: S607 (git is looked up on PATH)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("ray", "torch", "numpy"))
    return f"""# Parity

The same tests, on each engine. A cell says how many of a feature's tests pass there; the numbers in brackets say why the others are left
out. Tests of what only one engine has (the local engine's guardian, segments and sockets) are not counted.
"Not run": the suites of training that kill or count processes are not for the in-process engine. What failed beside others was run once more,
by itself; how many passed then is said.

`make parity` made this page from the results of commit `{commit.stdout.strip()}` with Python {platform.python_version()}, {versions} on {platform.system()}.
It is never edited by hand."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the parity page from junit results.")
    parser.add_argument("folder", type=Path, help="where the results are: local*.xml, inprocess*.xml, ray*.xml")
    parser.add_argument("page", type=Path, help="the page to write")
    given = parser.parse_args()
    results = read_folder(given.folder)
    own = {name_alike(result.test) for result in results if result.reason.startswith(OWN)}
    results = [result for result in results if name_alike(result.test) not in own]
    absent = set(ENGINES) - {result.engine for result in results}
    if absent:
        print(
            f"No results of {', '.join(sorted(absent))} in {given.folder}. Run make parity, or the suites with "
            "--junit-xml."
        )
        return 1
    given.page.write_text(build_page(results))
    failed = [result.test for result in results if result.outcome == "failed"]
    print(f"{given.page}: {len(results)} results, {len(failed)} failed", *failed, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
