"""Every benchmark, one table after the other.

python benchmarks/all.py --markdown benchmarks/RESULTS.md
"""

import subprocess
import sys
from pathlib import Path

PROGRAMS = (
    "startup",
    "core",
    "envelope",
    "idle",
    "idle_actors",
    "store",
    "launch",
    "collective",
    "train_jax",
    "parameter_server",
    "tune",
    "data",
)


def main() -> int:
    arguments = sys.argv[1:]
    if arguments and arguments[0] in {"-h", "--help"}:
        print(f"{__doc__}\nThe programs are {', '.join(PROGRAMS)}; what they all understand:\n")
        arguments = ["--help"]
        return subprocess.call([sys.executable, str(Path(__file__).with_name("core.py")), *arguments])
    statuses = [
        subprocess.call([sys.executable, str(Path(__file__).with_name(f"{name}.py")), *arguments]) for name in PROGRAMS
    ]
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main())
