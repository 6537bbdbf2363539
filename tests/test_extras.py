"""A library that is not installed is named in one form: what needs it, what is missing, and what to run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hocket import exceptions, extras

ROOT = Path(__file__).parents[1]

FORM = re.compile(r"^MissingExtraError: \S.* needs \S.*, and '\w[\w.]*' cannot be imported\. Run pip install .*\.$")

FOREIGN = (
    *("IPython", "PIL", "accelerate", "anywidget", "comet_ml", "duckdb", "fsspec", "grpc", "jax", "joblib", "keras"),
    *("lightgbm", "lightning", "matplotlib", "mlflow", "opentelemetry", "optuna", "pandas", "prometheus_client"),
    *("pyarrow", "pyspark", "ray", "safetensors", "sklearn", "starlette", "tensorboard", "tensorboardX", "tensorflow"),
    *("textual", "tf_keras", "torch", "traitlets", "transformers", "uvicorn", "wandb", "xgboost"),
)

BARE = f"""
import importlib, sys, tempfile
sys.modules.update(dict.fromkeys({FOREIGN!r}))
sys.path.insert(0, {str(ROOT / "tools")!r})

def tell(name, call):
    try:
        call()
    except Exception as error:
        print(f"{{name}}\\t{{type(error).__name__}}: {{error}}".replace("\\n", " "))
    else:
        print(f"{{name}}\\tcalled")
"""
"""The start of a program in which no other library is installed."""


def run(program: str) -> dict[str, str]:
    """Return what a program tells of each thing that it has tried."""
    done = subprocess.run([sys.executable, "-c", BARE + program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(line.split("\t", 1) for line in done.stdout.splitlines())


def test_every_public_module_names_what_it_lacks() -> None:
    told = run("""
import reference
for name in reference.MODULES:
    tell(name, lambda: importlib.import_module(name))
""")
    wrong = {name: text for name, text in told.items() if text != "called" and not FORM.match(text)}
    assert wrong == {}
    missing = {name for name, text in told.items() if text != "called"}
    assert {
        "hocket.train.torch",
        "hocket.train.horovod.jax",
        "hocket.collective.torch",
        "hocket.util.joblib",
    } <= missing
    assert {"hocket", "hocket.train", "hocket.data", "hocket.ps", "hocket.tune", "hocket.mesh", "hocket.util"} <= {
        name for name, text in told.items() if text == "called"
    }


CALLS = {
    "mesh": ("from hocket import mesh", "mesh.create_mesh({'a': 2})"),
    "mesh of JAX": ("from hocket import mesh", "mesh.create_mesh({'a': 2}, framework='jax')"),
    "picture": (
        "from hocket import mesh",
        "mesh.visualize(mesh.Layout(['a'], mesh.Mesh({'a': 2})), (4,), path=folder + '/a.png')",
    ),
    "Ray": ("import hocket", "hocket.init(engine='ray')"),
    "parquet": ("from hocket import data", "data.read_parquet(folder)"),
    "csv": ("from hocket import data", "data.read_csv(folder)"),
    "sort": ("from hocket import data", "data.range(3).sort('id').take(1)"),
    "pandas": ("from hocket import data", "data.range(3).to_pandas()"),
    "arrow": ("from hocket import data", "data.range(3).to_arrow_refs()"),
    "torch": ("from hocket import data", "next(iter(data.range(3).iter_torch_batches()))"),
    "TensorFlow": ("from hocket import data", "data.range(3).to_tf('id', 'id')"),
    "JAX": ("from hocket import data", "next(iter(data.range(3).iter_jax_batches()))"),
    "Spark": ("from hocket import data", "data.from_spark(None)"),
    "write": ("from hocket import data", "data.range(3).write_parquet(folder + '/new')"),
    "store": ("from hocket import train", "train.RunConfig(storage_path='s3://bucket/x')"),
    "TensorBoard": ("from hocket.train import loggers", "loggers.TensorBoardLogger(folder).start('run', {})"),
    "MLflow": ("from hocket.train import loggers", "loggers.MLflowLogger('file:' + folder)"),
    "W&B": ("from hocket.train import loggers", "loggers.WandbLogger(project='p')"),
    "Comet": ("from hocket.train import loggers", "loggers.CometLogger()"),
    "Optuna": ("from hocket.tune.search.optuna import OptunaSearch", "OptunaSearch()"),
    "PB2": ("from hocket import tune", "tune.schedulers.PB2(hyperparam_bounds={'lr': [0.1, 1.0]})"),
    "dashboard": ("from hocket.cli import main", "(lambda given: given.run(given))(main._parse(['dashboard']))"),
    "demo": ("from hocket.cli import main", "(lambda given: given.run(given))(main._parse(['demo']))"),
}


def test_every_call_names_what_it_lacks() -> None:
    tries = "".join(f"{imports}\ntell({name!r}, lambda: {call})\n" for name, (imports, call) in CALLS.items())
    told = run(f"folder = tempfile.mkdtemp()\n{tries}")
    assert {name: text for name, text in told.items() if not FORM.match(text)} == {}


def test_nothing_else_explains_a_missing_library() -> None:
    """One place has the form. What catches an ImportError elsewhere does without the library."""
    raises = re.compile(r"raise (exceptions\.)?(MissingExtraError|ImportError|ModuleNotFoundError)\(")
    sources = (ROOT / "src" / "hocket").rglob("*.py")
    found = {
        path.relative_to(ROOT / "src" / "hocket").as_posix() for path in sources if raises.search(path.read_text())
    }
    others = {
        "_base/missing.py",
        "train/keras/__init__.py",
    }  # Ray's modules that are not here, and another version of Keras
    assert found - others == {"extras.py"}


def test_a_library_that_is_broken_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_library.py").write_text("raise ImportError('no libcuda.')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        exceptions.MissingExtraError, match=r"^A test needs x, and its import failed: no libcuda\. Run\.$"
    ):
        extras.load("broken_library", "A test", "x", "Run.")
    with pytest.raises(
        exceptions.MissingExtraError, match=r"^A test needs x, and 'no_such' cannot be imported\. Run\.$"
    ):
        extras.check("no_such", "A test", "x", "Run.")
    extras.check("broken_library", "A test", "x", "Run.")  # it is there, and is not imported
