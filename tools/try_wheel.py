"""Tries the wheel as users get it: each extra alone, in a clean environment, with what its page or program does.

    python tools/try_wheel.py [EXTRA ...] [--lowest]

With `--lowest` the lowest versions that the package allows are installed, where they exist for this Python.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

import dist

ROOT = Path(__file__).parents[1]

FIRST = (
    "import hocket; hocket.init(num_cpus=2); f = hocket.remote(lambda x: x + 1); "
    "assert hocket.get([f.remote(1), f.remote(2)]) == [2, 3]; hocket.shutdown()"
)


@dataclass(frozen=True)
class Trial:
    """What is done with an extra."""

    pages: tuple[str, ...] = ()
    """Pages that run."""
    program: str = FIRST
    extras: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    """What the page's programs need besides."""
    is_free: bool = False
    """Whether it takes any versions: those that are tested together leave it none."""


MLFLOW = """
import tempfile, mlflow
from hocket import train
from hocket.train import loggers

def train_function():
    for step in range(3):
        train.report({"loss": 1 / (step + 1)})

folder = tempfile.mkdtemp()
address = f"sqlite:///{folder}/runs.db"
logger = loggers.MLflowLogger(address, experiment_name="digits", tags={"tried": "yes"})
config = train.RunConfig(name="run", storage_path=folder, callbacks=[logger])
train.DataParallelTrainer(
    train_function, scaling_config=train.ScalingConfig(num_workers=1), run_config=config
).fit()
client = mlflow.MlflowClient(address)
(run,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
assert run.info.status == "FINISHED" and run.data.tags["tried"] == "yes", run
values = [one.value for one in client.get_metric_history(run.info.run_id, "loss")]
assert values == [1 / (step + 1) for step in range(3)], values
"""
"""A real MLflow, which many versions of other libraries cannot be installed beside."""

TRIALS = {
    "": Trial(
        (
            "docs/core.md",
            "docs/actors.md",
            "docs/util.md",
            "docs/observe.md",
            "docs/ps.md",
            "docs/tutorials/parameter_servers.md",
            "docs/coming_from/multiprocessing.md",
            "docs/coming_from/dask.md",
        ),
        packages=("joblib",),
    ),
    "torch": Trial(
        (
            "README.md",
            "docs/collective.md",
            "docs/horovod.md",
            "docs/coming_from/torchrun.md",
            "docs/coming_from/horovod.md",
            "docs/tutorials/training.md",
        ),
        packages=("scikit-learn",),
    ),
    "lightning": Trial(("docs/coming_from/lightning.md",)),
    "transformers": Trial(program="import hocket.train.huggingface.transformers"),
    "tensorflow": Trial(
        ("docs/coming_from/tensorflow_ps.md",), "import hocket.train.tensorflow, hocket.mesh.tensorflow"
    ),
    "tf-keras": Trial(("docs/tensorflow.md",), "import hocket.train.tensorflow.keras"),
    "jax": Trial(("docs/jax.md", "docs/tutorials/meshes.md"), packages=("optax", "scikit-learn")),
    "keras": Trial(("docs/keras.md",), extras=("tensorflow", "jax")),
    "ray": Trial(("docs/coming_from/ray.md",), FIRST.replace("num_cpus=2", "num_cpus=2, engine='ray'")),
    "data": Trial(("docs/data.md",), extras=("torch",)),
    "spark": Trial(program="import hocket.spark"),
    "tune": Trial(("docs/tune.md", "docs/tutorials/search.md"), packages=("scikit-learn",)),
    "plot": Trial(("docs/progress.md",)),
    "xgboost": Trial(program="import hocket.train.xgboost, hocket.tune.integration.xgboost"),
    "lightgbm": Trial(("docs/train.md",), extras=("torch",)),
    "tensorboard": Trial(program="from hocket.train import loggers; import tensorboardX"),
    "mlflow": Trial(program=MLFLOW, is_free=True),
    "dashboard": Trial(
        program="from hocket.observe.dashboard import app, server; "
        "assert {'/', '/static/main.js', '/static/vendor/htm-preact.js'} <= set(app.load_pages())"
    ),
    "notebook": Trial(program="from hocket.observe.notebook import LiveCurves; LiveCurves().close()"),
    "prometheus": Trial(
        program="import prometheus_client as p; from hocket.util import prometheus; "
        "r = p.CollectorRegistry(); r.register(prometheus.Collector()); p.generate_latest(r)"
    ),
    "telemetry": Trial(program="import hocket.observe.telemetry"),
    "top": Trial(program="from hocket.observe.top import looking, screen; screen.Top(looking.Look())"),
    "demo": Trial(program="from hocket.cli import main; assert main.main(['demo', '--quiet', '--epochs', '2']) == 0"),
}


def list_lowest(project: str) -> list[str]:
    """Return the base dependencies of a pyproject.toml at their lowest versions."""
    return [one.replace(">=", "==") for one in tomllib.loads(project)["project"]["dependencies"]]


def try_extra(extra: str, wheel: Path, folder: Path, *, is_lowest: bool) -> str:
    """Install an extra, and do what is to be done; return what went wrong, or nothing."""
    trial = TRIALS[extra]
    python = folder / "bin" / "python"
    extras = ",".join([*([extra] if extra else []), *trial.extras])
    wanted = [f"hocket[{extras}] @ {wheel.as_uri()}" if extras else str(wheel), *trial.packages]
    limits = ["-c", str(ROOT / "constraints-dev.txt")]
    if is_lowest:
        wanted += list_lowest((ROOT / "pyproject.toml").read_text())
    if is_lowest or trial.is_free:
        limits = ["-c", str(write_torch(folder))]
    commands = [
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *limits, *wanted],
        [str(python), "-W", "error::DeprecationWarning:hocket", "-c", trial.program],
        *([str(python), str(ROOT / "tools" / "run_docs.py"), str(ROOT / page)] for page in trial.pages),
    ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder.parent)
        if done.returncode:
            return f"{' '.join(command)[:300]}\n{(done.stdout + done.stderr)[-3000:]}"
    return ""


def write_torch(folder: Path) -> Path:
    """Return constraints with nothing but the torch that is tested: its range has builds of gigabytes."""
    lines = [line for line in (ROOT / "constraints-dev.txt").read_text().splitlines() if line.startswith("torch==")]
    path = folder.parent / "torch.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def main() -> int:
    """Try the extras; return 1 if one does not work."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("extras", nargs="*", help="which; default: the bare package, and each extra")
    parser.add_argument("--lowest", action="store_true", help="the lowest versions of the base dependencies")
    given = parser.parse_args()
    chosen = ["" if extra == "bare" else extra for extra in given.extras] or list(TRIALS)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        wheel = next(path for path in dist.build("", Path(folder, "dist")) if path.suffix == ".whl")
        for extra in chosen:
            with tempfile.TemporaryDirectory() as place:
                start = time.perf_counter()
                wrong = try_extra(extra, wheel, Path(place, "venv"), is_lowest=given.lowest)
            failed += bool(wrong)
            print(f"{extra or 'bare'}: {wrong or 'works'} ({time.perf_counter() - start:.0f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
