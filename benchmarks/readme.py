"""The table of README.md: all of its rows from one commit, on one machine, by one command.

python benchmarks/readme.py                    # prints the table: an hour, on a machine that does nothing else
python benchmarks/readme.py --write README.md  # and puts it into the page, between the marks
python benchmarks/readme.py --quick            # does it work, not how fast

Each row is measured by the program that has it, with its peer in turns; this one only runs them and picks the medians.
"""

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

from _harness import describe_machine, read_commit

BEGIN, END = "<!-- made by benchmarks/readme.py -->", "<!-- end of what benchmarks/readme.py made -->"

FEWEST_ROUNDS = 5
"""A median of fewer says little of a machine whose mood changes."""


@dataclass(frozen=True)
class Line:
    """A row of README's table, and the row of a benchmark that it shows."""

    what: str
    command: str
    """The program and its peer, without the number of rounds."""
    row: str
    name: str
    """What the peer is called."""
    unit: str

    @property
    def peer(self) -> str:
        return shlex.split(self.command)[-1]


TASKS, CALLS = "single client tasks async", "1:1 actor calls async"
NETWORK, STEP = "perceptron 784-700-500-10", "DDP step, 2 ranks, MLP 784-2048-2048-10"
REDUCE = "collective.py --peer gloo"

LINES = [
    Line(what, command, row, name, unit)
    for what, command, row, name, unit in (
        ("cold start to the first result", "startup.py --peer ray", "cold start to first result", "Ray", " s"),
        ("tasks, many in flight", "core.py --peer ray", TASKS, "Ray", "/s"),
        ("the same", "core.py --peer futures", TASKS, "concurrent.futures", "/s"),
        ("the same", "core.py --peer pool", TASKS, "multiprocessing.Pool", "/s"),
        ("actor calls, many in flight", "core.py --peer ray", CALLS, "Ray", "/s"),
        ("a torchrun script, 2 ranks", "launch.py --peer torchrun", "script: cold start to exit", "torchrun", " s"),
        ("`TorchTrainer.fit()`, 2 ranks", "launch.py --peer ray", "trainer: cold start to exit", "Ray Train", " s"),
        ("all-reduce of 25 MB, 2 ranks", REDUCE, "all_reduce, 2 ranks, 25 MB", "gloo", " ms"),
        ("a DDP step, of which that is a part", REDUCE, STEP, "gloo", " steps/s"),
        ("parameter server, perceptron", "parameter_server.py --peer tensorflow", NETWORK, "TensorFlow", " steps/s"),
        ("`map_batches` over Parquet", "data.py --peer ray", "map_batches over Parquet", "Ray Data", " s"),
        ("group by, sum and mean", "data.py --peer 'by hand'", "groupby, sum and mean", "DuckDB by hand", " s"),
    )
]


def measure(command: str, only: str, arguments: list[str]) -> dict[str, dict[str, str]]:
    """Run a benchmark, and return its table: by the row's name, what each column says."""
    program, *words = shlex.split(command)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "table.md")
        path = str(Path(__file__).with_name(program))
        whole = [sys.executable, path, *words, "--only", only, *arguments, "--markdown", str(file)]
        subprocess.run(whole, check=False)
        text = file.read_text() if file.exists() else ""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {cells[0]: dict(zip(rows[0], cells, strict=True)) for cells in rows[2:]}


def read_median(cell: str, unit: str) -> str:
    """Return a cell's median with its unit; microseconds become milliseconds."""
    number = cell.partition(" (")[0]
    if not re.fullmatch(r"[\d.,e+]+", number):
        return cell
    return f"{float(number.replace(',', '')) / 1000:.3g}{unit}" if unit == " ms" else f"{number}{unit}"


def build_table(arguments: list[str], rounds: int) -> str:
    """Run all benchmarks, and return the table with what it was measured on."""
    commit = read_commit()
    commands: dict[str, list[Line]] = {}
    for line in LINES:
        commands.setdefault(line.command, []).append(line)
    found = {
        command: measure(command, "|".join(one.row for one in lines), arguments) for command, lines in commands.items()
    }
    if read_commit() != commit:
        raise SystemExit(f"The checkout was at {commit} and is at {read_commit()}: the rows are not of one commit.")
    rows = []
    for line in LINES:
        cells = found[line.command].get(line.row, {})
        ours, theirs = (read_median(cells.get(side, "failed"), line.unit) for side in ("hocket", line.peer))
        rows.append(f"| {line.what} | {ours} | {line.name} {theirs} | `python benchmarks/{line.command}` |")
    head = f"Medians of {rounds} rounds in which the sides take turns, on CPUs: {describe_machine()}."
    titles = ["| what | Hocket | beside | command |", "|---|--:|--:|---|"]
    return "\n".join([textwrap.fill(head, 120, break_long_words=False), "", *titles, *rows])


def write(page: Path, table: str) -> None:
    """Put the table between the marks of a page."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} lacks the marks {BEGIN} and {END}.")
    page.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=FEWEST_ROUNDS, help="samples of each side (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one short round: does it work, not how fast")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table between the marks of this page")
    given = parser.parse_args()
    if given.write is not None and (given.quick or given.rounds < FEWEST_ROUNDS or read_commit().endswith("+")):
        parser.error(f"--write takes {FEWEST_ROUNDS} rounds or more, of a commit: no --quick, and no changed files")
    rounds = 1 if given.quick else given.rounds
    table = build_table(["--quick"] if given.quick else ["--rounds", str(rounds)], rounds)
    print(table)
    if given.write is not None:
        write(given.write, table)
    return int("failed" in table)


if __name__ == "__main__":
    sys.exit(main())
