"""What the benchmarks share: the command line, samples, medians and ratios, the table, the description of the machine.

A benchmark has rows (what is measured) and sides (who is measured; the first is ours). Every sample comes from a fresh
process, and the sides take turns, so that a change of the machine's mood touches all of them.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import track
from rich.table import Table

OURS = "hocket"
EARLIER = "earlier"
"""The side that is ours at another commit."""
PEERS = {
    "ray": "ray",
    "futures": "concurrent.futures",
    "pool": "multiprocessing",
    "loky": "loky",
    "dask": "distributed",
    "memcpy": "numpy",
    "gloo": "torch",
    "torchrun": "torch",
    "plain jax": "jax",
    "one core": "jax",
    "both cores": "jax",
    "io_callback": "jax",
    "array": "torch",
    "in place": "torch",
    "synchronous": "torch",
    "tensorflow": "tensorflow",
    "optuna": "optuna",
    "by hand": "duckdb",
    "torch": "torch",
    "datasets": "datasets",
}
"""Peer to the module it needs. `futures` is ProcessPoolExecutor, `pool` is multiprocessing.Pool, `memcpy` a plain copy,
`array` a loop over one in memory; the cores are JAX's without us; `in place` is ours without a journal, `synchronous`
ours in steps, `by hand` DuckDB, Arrow or numpy in one process, `torch` its DataLoader, `datasets` Hugging
Face's.
"""

LIMIT_SECONDS = 1800
"""Longest that one side may take for one round; Ray needs some 300 on two cores. Guessed."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing measured."""

    name: str
    unit: str
    more_is_better: bool = True


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the command line asked for."""

    rounds: int
    quick: bool
    only: str
    sides: tuple[str, ...]
    """Ours first, then the peers that are installed."""
    markdown: Path | None
    earlier: Path | None = None
    """A checkout of another commit, to be measured as one side."""

    def wants(self, row: Row) -> bool:
        return is_asked(row.name, self.only)


def is_asked(name: str, only: str) -> bool:
    """Tell whether a name contains one of the texts of ``--only``, which are separated by bars."""
    return any(text in name for text in only.split("|"))


@dataclass
class Results:
    """Samples by row and side, and why one is missing."""

    rows: list[Row]
    sides: tuple[str, ...]
    samples: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)
    absences: dict[tuple[str, str], str] = field(default_factory=dict)
    """What a side cannot do, and why."""

    def add(self, row: str, side: str, value: float) -> None:
        self.samples.setdefault((row, side), []).append(value)

    def fail(self, row: str, side: str, reason: str) -> None:
        self.failures[row, side] = reason

    def get_optional_median(self, row: Row, side: str) -> float | None:
        values = self.samples.get((row.name, side))
        return statistics.median(values) if values else None

    def get_optional_ratio(self, row: Row, peer: str) -> float | None:
        """How many times better ours is than the peer; below 1 it is worse."""
        ours, theirs = self.get_optional_median(row, self.sides[0]), self.get_optional_median(row, peer)
        if ours is None or theirs is None:
            return None
        better, worse = (ours, theirs) if row.more_is_better else (theirs, ours)
        return better / worse if worse else None

    def format_cell(self, row: Row, side: str) -> str:
        values = self.samples.get((row.name, side))
        if not values:
            if (row.name, side) in self.absences:
                return "not available"
            return "failed" if (row.name, side) in self.failures else "-"
        text = format_number(statistics.median(values))
        return text if len(values) == 1 else f"{text} ({format_number(min(values))} to {format_number(max(values))})"

    def format_rows(self) -> list[list[str]]:
        return [
            [row.name, row.unit]
            + [self.format_cell(row, side) for side in self.sides]
            + [format_ratio(self.get_optional_ratio(row, peer)) for peer in self.sides[1:]]
            for row in self.rows
        ]

    @property
    def exit_status(self) -> int:
        """1 when ours failed somewhere; a peer that fails is only told."""
        return int(any(side == self.sides[0] for _, side in self.failures))

    @property
    def titles(self) -> list[str]:
        return ["operation", "unit", *self.sides, *(f"against {peer}" for peer in self.sides[1:])]


def format_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def format_ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3g}x"


def parse_settings(description: str, *, rounds: int, peers: tuple[str, ...]) -> Settings:
    """Read the command line of a benchmark that knows these peers; others that it names are left out in silence."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--peer", action="append", choices=sorted(PEERS), help="may repeat; default: all installed")
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="only the operations whose name contains this, or one of several: A|B",
    )
    parser.add_argument("--rounds", type=int, default=None, help=f"samples of each side (default {rounds})")
    parser.add_argument("--quick", action="store_true", help="one short round: does it work, not how fast")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="append the table to this file")
    parser.add_argument("--earlier", type=Path, metavar="FOLDER", help="only beside this checkout of another commit")
    arguments = parser.parse_args()
    if arguments.earlier is not None and not (arguments.earlier / "src" / OURS).is_dir():
        parser.error(f"--earlier takes a checkout, but {arguments.earlier} has no folder src/{OURS}")
    peers = peers if arguments.earlier is None else ()
    asked = [peer for peer in peers if not arguments.peer or peer in arguments.peer]
    installed = [peer for peer in asked if importlib.util.find_spec(PEERS[peer])]
    for peer in sorted(set(asked) - set(installed)):
        print(f"{peer} is left out: it is not installed (make bench installs it)")
    return Settings(
        rounds=arguments.rounds or (1 if arguments.quick else rounds),
        quick=arguments.quick,
        only=arguments.only,
        sides=(OURS, *installed) if arguments.earlier is None else (OURS, EARLIER),
        markdown=arguments.markdown,
        earlier=arguments.earlier,
    )


def take_turns(rows: Sequence[Row], settings: Settings, measure: Callable[[str], Sequence[float | None]]) -> Results:
    """Measure all rows at once, each side by its own program, in turns. None stands for what a side has not."""
    results = Results(rows=[row for row in rows if settings.wants(row)], sides=settings.sides)
    for number in range(settings.rounds):
        for side in settings.sides[:: 1 if number % 2 == 0 else -1]:
            try:
                for row, value in zip(rows, measure(side), strict=True):
                    if value is not None:
                        results.add(row.name, side, value)
            except RuntimeError as error:
                results.fail(rows[0].name, side, str(error))
    return results


def measure_sides(name: str, rows: list[Row], settings: Settings) -> Results:
    """Measure a list of operations (see `_sides`), the sides in turns, each time in a process of its own."""
    results = Results(rows=[row for row in rows if settings.wants(row)], sides=settings.sides)
    turns = [side for _ in range(settings.rounds) for side in settings.sides]
    for side in track(turns, description=name, disable=not sys.stderr.isatty()):
        measure_side(name, side, settings, results)
    return results


def measure_side(name: str, side: str, settings: Settings, results: Results) -> None:
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        file, log = Path(folder, "results"), Path(folder, "log")
        file.touch()
        program = Path(__file__).with_name("_sides.py")
        command = [sys.executable, str(program), name, name_package(side), str(file), "--only", settings.only]
        environment = build_environment(side, settings)
        with log.open("w") as output:
            process = subprocess.Popen(
                [*command, "--quick"] if settings.quick else command, stdout=output, stderr=output, env=environment
            )
            try:
                failure = f"exit status {status}" if (status := process.wait(LIMIT_SECONDS)) else ""
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                failure = f"stopped after {LIMIT_SECONDS} s"
        for line in file.read_text().splitlines():
            record = json.loads(line)
            if "value" in record:
                results.add(record["row"], side, record["value"])
            elif "absence" in record:
                results.absences[record["row"], side] = record["absence"]
            else:
                results.fail(record["row"], side, record["failure"])
        if failure:
            results.fail("the whole side", side, f"{failure}\n{log.read_text()[-2000:]}")


def name_package(side: str) -> str:
    """What a side's program imports."""
    return OURS if side == EARLIER else side


def build_environment(side: str, settings: Settings) -> dict[str, str]:
    """The environment variables of a side's program."""
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    if side == EARLIER and settings.earlier is not None:
        environment["PYTHONPATH"] = str(settings.earlier.resolve() / "src")
    return environment


def describe_machine() -> str:
    """Processor, memory, versions and commit: what a figure is worth nothing without."""
    info = Path("/proc/cpuinfo")
    models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    versions = [
        f"{name} {importlib.metadata.version(name)}"
        for name in ("hocket", "numpy", "torch", "jax", "tensorflow-cpu", "ray", "loky", "distributed")
        if has_package(name)
    ]
    parts = [
        f"{os.cpu_count()} x {models[0] if models else platform.machine()}",
        f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        f"{platform.system()} {platform.release()}",
        f"Python {platform.python_version()}",
        *versions,
        f"commit {read_commit()}",
        datetime.now(UTC).strftime("%Y-%m-%d"),
    ]
    return ", ".join(parts)


def has_package(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def read_commit() -> str:
    """The commit measured, with a + when the working tree differs from it."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*"]
    folder = Path(__file__).parent
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def show(results: Results, settings: Settings, *, title: str) -> None:
    """Print the table, and append it to the file that the command line named."""
    machine = describe_machine()
    table = Table(title=title, caption=machine)
    for number, name in enumerate(results.titles):
        table.add_column(name, justify="left" if number < 2 else "right", overflow="fold")
    for cells in results.format_rows():
        table.add_row(*cells)
    Console(width=None if os.isatty(1) else 200).print(table)
    for (row, side), reason in {**results.absences, **results.failures}.items():
        print(f"{row}, {side}: {reason}")
    if settings.markdown is not None:
        append_markdown(settings.markdown, results, title=title, machine=machine, rounds=settings.rounds)


def append_markdown(path: Path, results: Results, *, title: str, machine: str, rounds: int) -> None:
    lines = [
        f"## {title}",
        "",
        (
            f"{machine}. Median of {rounds} rounds (lowest to highest); a ratio above 1 is in favour of "
            f"{results.sides[0]}."
        ),
        "",
        "| " + " | ".join(results.titles) + " |",
        "|" + "---|" * 2 + "--:|" * (len(results.titles) - 2),
        *("| " + " | ".join(cells) + " |" for cells in results.format_rows()),
        "",
    ]
    with path.open("a") as file:
        file.write("\n" + "\n".join(lines))
