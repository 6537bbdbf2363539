"""The `hocket` command: reads the arguments, and loads only the modules that they need."""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import io
import math
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hocket import _base, exceptions, extras
from hocket._base import texts
from hocket.cli import flags, notices
from hocket.core import engines

DEMO_NEEDS = {"torch": "torch", "sklearn": "scikit-learn", "matplotlib": "matplotlib"}
"""The demo's imports, each with its name for pip."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: The arguments. Default: those of the process.

    Returns:
        The exit code: 0, or 1 after an error, 130 after Ctrl-C, 141 if the output has no reader any more. For `run`,
        the exit code of the script.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the encoding lacks ends no command
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            return _run(_parse(argv))
        finally:
            if sys.stdout is not None:  # None if the output is closed
                sys.stdout.flush()
    except BrokenPipeError as error:
        if _drop_unread():
            return _BROKEN_PIPE
        print(f"hocket: {error}", file=sys.stderr)
        return 1


_BROKEN_PIPE = 128 + signal.SIGPIPE
"""The exit code that a shell shows for a program that wrote to a pipe without a reader."""


def _drop_unread() -> bool:
    """Discard output that has no reader any more, as before ``head``; return whether there is such output."""
    found = False
    for stream in (sys.stdout, sys.stderr):
        try:
            descriptor = stream.fileno()
        except (OSError, ValueError, AttributeError):  # it is closed, or no file, as in a test
            continue
        poll = select.poll()
        poll.register(descriptor, 0)
        if any(state & select.POLLERR for _, state in poll.poll(0)):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)
            found = True
    return found


def _run(arguments: argparse.Namespace) -> int:
    try:
        code: int = arguments.run(arguments)
        return code
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        print("\nhocket: stopped by Ctrl-C; all workers have ended.", file=sys.stderr)
        return 130
    except (exceptions.HocketError, OSError, ValueError) as error:
        print(f"hocket {arguments.command}: {texts.escape(texts.safe_text(error))}", file=sys.stderr)
        return 1


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments. An unknown argument is an error of the subcommand, which shows the subcommand's usage."""
    parser = build_parser()
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        asked: argparse.ArgumentParser = getattr(arguments, "parser", parser)
        hint = flags.suggest(asked, unknown, sys.argv if argv is None else argv)
        if arguments.command == "run":
            hint += " Write the script's own arguments after the script"
        asked.error(f"unrecognized arguments: {' '.join(unknown)}{'.' if hint else ''}{hint}")
    return arguments


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(prog="hocket", description="One program shared among many workers.")
    parser.add_argument("--version", action="version", version=f"hocket {_base.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_demo(commands)
    _add_run(commands)
    status = commands.add_parser(
        "status",
        help="show what runs, and where the memory is",
        description="Show all your sessions on this machine: tasks, actors, workers, memory, errors. The sessions are "
        "not disturbed.",
    )
    status.add_argument(
        "--timeout",
        type=_parse_seconds,
        default=2.0,
        metavar="SECONDS",
        help="how long a driver may take to answer (default: 2)",
    )
    status.set_defaults(run=_run_module("status", as_json="json", timeout_s="timeout"))
    _add_dashboard(commands)
    top = commands.add_parser(
        "top",
        help="show what runs, in the terminal",
        description="Show one of your sessions on this machine: workers, functions, actors, memory, ranks. Keys: 1 to "
        "7 choose a page, s sorts, p pauses, Enter shows the stack of a process, q quits. On a terminal that cannot "
        "show pages, the command prints every two seconds.",
    )
    top.add_argument("pid", nargs="?", type=int, help="the driver's pid (default: the session opened last)")
    top.add_argument("--plain", action="store_true", help="print repeatedly, and show no pages")
    top.add_argument("--count", type=_parse_count(1, 1_000_000), metavar="N", help="print N times, then end")
    top.set_defaults(run=_run_module("top", pid="pid", plain="plain", count="count"))
    report = commands.add_parser(
        "report",
        help="write one file that shows a run",
        description="Write one HTML file that shows a run: curves, metrics, checkpoints. The file is complete in "
        "itself, and loads nothing.",
    )
    report.add_argument("folder", metavar="RUN", help="the run's folder: Result.path")
    report.add_argument("--output", metavar="FILE", help="where to write (default: report.html in the run's folder)")
    report.set_defaults(run=_run_report)
    _add_runs(commands)
    bench = commands.add_parser(
        "bench",
        help="measure this machine",
        description="Measure the core operations on this machine; takes half a minute.",
    )
    bench.add_argument(
        "--quick", action="store_true", help="take about a second: check that everything works, not how fast it is"
    )
    bench.set_defaults(run=_run_module("bench", as_json="json", is_quick="quick"))
    doctor = commands.add_parser(
        "doctor",
        help="check this machine; bug reports need the output",
        description="Print versions and limits, run a small session, and name each fault with its remedy.",
    )
    doctor.set_defaults(run=_run_module("doctor", as_json="json"))
    shells = commands.add_parser(
        "completion",
        help="print the code that completes this command's words in a shell",
        description='Print the code for a shell to run: eval "$(hocket completion bash)".',
    )
    shells.add_argument("shell", choices=("bash", "fish", "zsh"))
    shells.set_defaults(run=_run_completion)
    for reporting in (status, bench, doctor):
        reporting.add_argument("--json", action="store_true", help="for programs")
    return parser


def _add_dashboard(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    dashboard = commands.add_parser(
        "dashboard",
        help="show what runs, in a browser",
        description="Serve a page on 127.0.0.1 that shows your sessions on this machine, until Ctrl-C, the session's "
        "end, or ten minutes without a viewer. It reads the session's memory from outside, and changes nothing.",
    )
    dashboard.add_argument(
        "what",
        nargs="?",
        metavar="PID|FOLDER",
        help="a driver's pid, or the folder of a run or of several (default: all your sessions)",
    )
    dashboard.add_argument(
        "--port", type=_parse_count(0, 65535), default=0, help="where to listen (default: any free port)"
    )
    dashboard.add_argument("--socket", type=Path, metavar="PATH", help="a Unix socket to listen on, for ssh -L")
    dashboard.set_defaults(run=_run_dashboard)


def _run_dashboard(arguments: argparse.Namespace) -> int:
    for name in ("starlette", "uvicorn"):
        extras.check(name, "The dashboard", "starlette and uvicorn", "Run pip install 'hocket[dashboard]'.")
    module = importlib.import_module("hocket.observe.dashboard.server")
    what = arguments.what
    pid = int(what) if what is not None and what.isascii() and what.isdigit() else None
    folder = None if what is None or pid is not None else Path(what)
    code: int = module.serve(pid, folder, arguments.socket or arguments.port, functools.partial(print, flush=True))
    return code


def _run_report(arguments: argparse.Namespace) -> int:
    print(importlib.import_module("hocket.cli.runs").report(arguments.folder, arguments.output))
    return 0


def _add_runs(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    runs = commands.add_parser(
        "runs",
        help="list runs, and compare them",
        description="List the runs of folders: how they ended, their last metrics, and the differences of their "
        "configurations. With --output, write one HTML file that overlays their curves.",
    )
    runs.add_argument("folders", nargs="+", metavar="FOLDER", help="runs, or folders of runs (storage_path)")
    runs.add_argument("--metric", action="append", metavar="NAME", help="show this metric (default: the first five)")
    runs.add_argument(
        "--sort", metavar="NAME", help="sort by this metric, the smallest first (default: sort by start time)"
    )
    runs.add_argument("--output", metavar="FILE", help="write a report that compares them")
    runs.add_argument("--json", action="store_true", help="for programs")
    runs.set_defaults(
        run=_run_module("runs", folders="folders", metrics="metric", sort="sort", output="output", as_json="json")
    )


def _get_engine() -> str:
    """Return the default engine of a session."""
    return os.environ.get("HOCKET_ENGINE") or engines.NAMES[0]


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="train a real model on two workers",
        description="Train a small convolutional network on scikit-learn's handwritten digits, in several worker "
        "processes.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    demo.add_argument("--workers", type=_parse_count(0), default=2, help="ranks; 0 trains in this process")
    demo.add_argument("--epochs", type=_parse_count(1), default=15, help="passes over the training digits")
    demo.add_argument("--seed", type=_parse_count(0, 2**32 - 1), default=0, help="same seed, same result")
    demo.add_argument("--output", type=Path, default=Path("hocket-demo"), help="folder for checkpoint and curves")
    demo.add_argument("--engine", choices=engines.NAMES, default=_get_engine(), help="the engine that runs the workers")
    demo.add_argument("--quiet", action="store_true", help="show no live progress")
    demo.set_defaults(run=_run_demo)


_TORCHRUN_MEETING = (
    *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "node-rank", "master-addr", "master-port", "local-addr"),
    *("start-method", "monitor-interval", "role"),
)
"""torchrun's options with a value for how machines meet. The ranks are on one machine, and need none of them."""


_TORCHRUN_OTHERS = {
    "virtual-local-rank": 0,
    "numa-binding": None,
    "signals-to-handle": None,
    "logs-specs": None,
    "shutdown-timeout": None,
    "duplicate-stdout-filters": None,
    "duplicate-stderr-filters": None,
    "event-log-handler": None,
}
"""torchrun's options without a counterpart, with the number of their values (None: one)."""


class _Refused(argparse.Action):
    """An option that only torchrun has: an error."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: object, option: str | None = None
    ) -> None:
        parser.error(f"hocket run does not have torchrun's option {option}. Leave it out.")


class _Ignored(argparse.Action):
    """An option that has no effect here: it is noted."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: object, option: str | None = None
    ) -> None:
        vars(namespace).setdefault("ignored", []).append(option)


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = commands.add_parser(
        "run",
        help="run a torchrun script on several processes",
        usage="hocket run [options] [-m] SCRIPT [ARGUMENT ...]",
        description="Run a script written for torchrun in several processes on this machine, with torchrun's "
        "environment variables.",
        allow_abbrev=False,
    )
    run.add_argument(
        "--workers",
        "--nproc-per-node",
        "--nproc_per_node",
        default=os.environ.get("PET_NPROC_PER_NODE") or "1",
        metavar="N",
        help="number of ranks; auto starts one for each GPU, or for each CPU if there is no GPU; also cpu, gpu "
        "(default: $PET_NPROC_PER_NODE, as in torchrun, or 1)",
    )
    run.add_argument(
        "--max-restarts",
        "--max_restarts",
        type=_parse_count(0),
        default=0,
        metavar="K",
        help="how many times all ranks start again after one has failed (default: 0)",
    )
    run.add_argument(
        "--threads",
        type=_parse_count(1),
        metavar="N",
        help="OMP_NUM_THREADS of each rank (default: the rank's share of the CPUs, unless the variable is set)",
    )
    run.add_argument(
        "--grace",
        type=_parse_seconds,
        default=30.0,
        metavar="SECONDS",
        help="how long ranks may take to end after a signal to end (default: 30)",
    )
    run.add_argument("--prefix", action="store_true", help="begin each line of output with its rank: [0]")
    run.add_argument(
        "--backend",
        choices=["gloo", "hocket"],
        default="gloo",
        help="the backend for scripts that request gloo: gloo, or Hocket's collectives in shared memory (default: "
        "gloo)",
    )
    _add_logs(run)
    run.add_argument("--no-python", "--no_python", action="store_true", help="SCRIPT is a program, not a Python file")
    run.add_argument(
        "--standalone", action="store_true", help="accepted for compatibility with torchrun; always in effect"
    )
    run.add_argument(
        "--nnodes",
        type=_parse_nodes,
        metavar="1",
        help="accepted for compatibility with torchrun; there is always one machine",
    )
    for name in _TORCHRUN_MEETING:
        names = (f"--{name}", f"--{name.replace('-', '_')}")
        run.add_argument(*names, dest=argparse.SUPPRESS, action=_Ignored, help=argparse.SUPPRESS)
    for name, count in _TORCHRUN_OTHERS.items():
        names = (f"--{name}", f"--{name.replace('-', '_')}")
        run.add_argument(*names, dest=argparse.SUPPRESS, action=_Refused, nargs=count, help=argparse.SUPPRESS)
    run.add_argument("--run-path", "--run_path", action="store_true", help=argparse.SUPPRESS)  # scripts are run so
    run.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module, as in python -m")
    run.add_argument("script", metavar="SCRIPT", help="a script, a folder with a __main__.py, or a module")
    rest = run.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="the script's own arguments"
    )
    rest.required = False  # else argparse requires it if the script is missing
    run.set_defaults(run=_run_run, parser=run)


def _add_logs(run: argparse.ArgumentParser) -> None:
    streams = "1 is stdout, 2 stderr, 3 both; for some ranks: 0:3,1:2"
    run.add_argument(
        "--log-dir",
        "--log_dir",
        type=_parse_text,
        metavar="FOLDER",
        help="also write each rank's output to files there: RUN/attempt_0/RANK/stdout.log",
    )
    run.add_argument(
        "-r", "--redirects", default="", metavar="X", help=f"write output to files, and do not show it: {streams}"
    )
    run.add_argument("-t", "--tee", default="", metavar="X", help=f"write output to files, and also show it: {streams}")
    run.add_argument(
        "--local-ranks-filter",
        "--local_ranks_filter",
        type=_parse_text,
        metavar="RANKS",
        help="show only the output of these ranks, such as 0,1",
    )


def _parse_text(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def _parse_nodes(text: str) -> str:
    if text not in ("1", "1:1"):
        raise argparse.ArgumentTypeError(
            f"hocket run starts ranks on one machine only, but received {text!r}. Use torchrun, or a trainer on Ray: "
            "hocket.init(engine='ray')"
        )
    return text


def _parse_seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, 0 or more, but received {text!r}")
    return number


class _parse_count:  # noqa: N801 (argparse shows its name in messages about values that it refuses)
    """Reads a whole number within limits."""

    def __init__(self, least: int, most: float = math.inf) -> None:
        self._least = least
        self._most = most

    def __call__(self, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = self._least - 1
        if not self._least <= number <= self._most:
            most = f" and at most {self._most}" if self._most < math.inf else ""
            raise argparse.ArgumentTypeError(
                f"must be a whole number that is {self._least} or more{most}, but received {text!r}"
            )
        return number


def _run_demo(arguments: argparse.Namespace) -> int:
    for name, package in DEMO_NEEDS.items():
        extras.check(name, "The demo", package, "Run pip install 'hocket[demo]'.")
    run = _run_module(
        "demo.command",
        num_workers="workers",
        num_epochs="epochs",
        seed="seed",
        engine="engine",
        output="output",
        is_quiet="quiet",
    )
    return run(arguments)


def _run_run(arguments: argparse.Namespace) -> int:
    ignored = getattr(arguments, "ignored", [])
    if ignored:
        notices.notify(
            f"hocket run: without effect: {', '.join(ignored)}. All ranks are on one machine, and find each other "
            "without these options."
        )
    misplaced = flags.describe_misplaced(
        arguments.parser, arguments.script, arguments.arguments, is_module=arguments.module
    )
    if misplaced and not arguments.no_python:
        notices.notify(f"hocket run: {misplaced}")
    launch = importlib.import_module("hocket.cli.launch.command")
    code: int = launch.run(
        arguments.script,
        arguments.arguments,
        is_module=arguments.module,
        is_program=arguments.no_python,
        workers=arguments.workers,
        threads=arguments.threads,
        max_restarts=arguments.max_restarts,
        grace_s=arguments.grace,
        is_prefixed=arguments.prefix,
        backend="" if arguments.backend == "gloo" else arguments.backend,
        logs=launch.Logs(
            folder=arguments.log_dir or "",
            redirects=arguments.redirects,
            tee=arguments.tee,
            filter=arguments.local_ranks_filter or "",
        ),
    )
    return code


def _run_completion(arguments: argparse.Namespace) -> int:
    completion = importlib.import_module("hocket.cli.completion")
    print(completion.write(build_parser(), arguments.shell), end="")
    return 0


def _run_module(module: str, **names: str) -> Callable[[argparse.Namespace], int]:
    """Return a function that runs a command: it calls the function `run` of a module.

    The module is loaded only when the command runs, which keeps `hocket --version` fast.

    Args:
        module: The module's name in `hocket.cli`.
        **names: The command's arguments that `run` gets, by the names of its own parameters.
    """

    def run(arguments: argparse.Namespace) -> int:
        given = {own: getattr(arguments, name) for own, name in names.items()}
        return importlib.import_module(f"hocket.cli.{module}").run(**given) or 0

    return run
