"""Searches over one network on scikit-learn's digits: by a grid, by Optuna, stopped early, and as a population.

    python examples/search_digits.py            # a grid of learning rates, and random numbers of layers
    python examples/search_digits.py optuna     # proposals from the results of earlier trials
    python examples/search_digits.py asha       # bad trials are stopped; each trial is a trainer with two workers
    python examples/search_digits.py population # bad trials go on from good ones, with another learning rate

Each prints its best trials, and writes the curves of all trials as `search_digits.png` if matplotlib is installed.
"""

import argparse
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset, random_split

from hocket import train, tune
from hocket.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from hocket.tune.schedulers import ASHAScheduler, PopulationBasedTraining
from hocket.tune.search.optuna import OptunaSearch


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Return digits to train on, and others to test with."""
    images, labels = load_digits(return_X_y=True)
    rows = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    first, second = random_split(rows, [0.8, 0.2], torch.Generator().manual_seed(0))
    return TensorDataset(*rows[first.indices]), TensorDataset(*rows[second.indices])


def build_model(n_layers: int) -> torch.nn.Module:
    """Return a perceptron with `n_layers` hidden layers of 32 units."""
    torch.manual_seed(0)
    sizes = [64, *[32] * n_layers]
    hidden = [
        layer
        for width, after in itertools.pairwise(sizes)
        for layer in (torch.nn.Linear(width, after), torch.nn.ReLU())
    ]
    return torch.nn.Sequential(*hidden, torch.nn.Linear(sizes[-1], 10))


def train_epoch(model: torch.nn.Module, loader: Any, optimizer: torch.optim.Optimizer) -> None:
    """Take a step for each batch."""
    for images, labels in loader:
        optimizer.zero_grad()
        loss: Any = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()


@torch.no_grad()
def test(model: torch.nn.Module, rows: TensorDataset) -> float:
    """Return the accuracy."""
    images, labels = rows.tensors
    return float((model(images).argmax(dim=1) == labels).float().mean())


def objective(config: dict[str, Any]) -> dict[str, Any]:
    """Train for three epochs; the return value is the trial's report."""
    torch.set_num_threads(1)
    rows, held = load_data()
    model = build_model(config["n_layers"])
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    for _ in range(3):
        train_epoch(model, DataLoader(rows, batch_size=32, shuffle=True), optimizer)
    return {"acc": test(model, held)}


def train_on_ranks(config: dict[str, Any]) -> None:
    """Train in a rank of a trainer, and report each epoch."""
    rows, held = load_data()
    model = prepare_model(build_model(config["n_layers"]))
    loader = prepare_data_loader(DataLoader(rows, batch_size=32, shuffle=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    for _ in range(9):
        train_epoch(model, loader, optimizer)
        train.report({"acc": test(model, held)})


class Digits(tune.Trainable):
    """A trial as a class. Each step is an epoch, and another trial can copy its state."""

    def setup(self, config: dict[str, Any]) -> None:
        """Build the model."""
        torch.set_num_threads(1)
        rows, self.held = load_data()
        self.loader = DataLoader(rows, batch_size=32, shuffle=True)
        self.model = build_model(1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=config["lr"], momentum=0.9)

    def step(self) -> dict[str, Any]:
        """Train for an epoch."""
        train_epoch(self.model, self.loader, self.optimizer)
        return {"acc": test(self.model, self.held)}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write the weights."""
        torch.save(self.model.state_dict(), Path(checkpoint_dir, "model.pt"))

    def load_checkpoint(self, checkpoint: str) -> None:
        """Read the weights."""
        self.model.load_state_dict(torch.load(Path(checkpoint, "model.pt")))

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Become another trial in the same process."""
        self.setup(new_config)
        return True


def build_tuner(kind: str, storage: str) -> tune.Tuner:
    """Return the search of one kind."""
    space: dict[str, Any] = {
        "lr": tune.grid_search([0.001, 0.01, 0.1]),
        "n_layers": tune.choice([1, 2, 3]),
    }
    run_config = tune.RunConfig(name=kind, storage_path=storage)
    best: dict[str, Any] = {"metric": "acc", "mode": "max"}
    if kind == "grid":
        return tune.Tuner(
            objective, param_space=space, tune_config=tune.TuneConfig(seed=0, **best), run_config=run_config
        )
    space = {"lr": tune.loguniform(1e-4, 1), "n_layers": tune.choice([1, 2, 3])}
    if kind == "optuna":
        config = tune.TuneConfig(num_samples=8, search_alg=OptunaSearch(seed=0), **best)
        return tune.Tuner(objective, param_space=space, tune_config=config, run_config=run_config)
    if kind == "asha":
        trainer = TorchTrainer(train_on_ranks, scaling_config=train.ScalingConfig(num_workers=2))
        scheduler = ASHAScheduler(max_t=9, reduction_factor=3)
        config = tune.TuneConfig(num_samples=4, seed=0, scheduler=scheduler, **best)
        return tune.Tuner(trainer, param_space={"train_loop_config": space}, tune_config=config, run_config=run_config)
    population = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"lr": tune.loguniform(1e-4, 1)},
        synch=True,
    )
    return tune.Tuner(
        Digits,
        param_space={"lr": tune.loguniform(1e-4, 1e-2)},
        tune_config=tune.TuneConfig(num_samples=4, seed=0, scheduler=population, reuse_actors=True, **best),
        run_config=tune.RunConfig(name=kind, storage_path=storage, stop={"training_iteration": 8}),
    )


def draw(results: tune.ResultGrid, path: Path) -> None:
    """Draw each trial's curve."""
    try:
        from matplotlib import figure
    except ImportError:
        return
    drawing = figure.Figure(figsize=(7, 4))
    axes = drawing.subplots()
    for one in results:
        axes.plot([report["acc"] for report in one.metrics_history], marker=".", label=one.trial_id[-5:])
    axes.set_xlabel("report")
    axes.set_ylabel("accuracy")
    axes.legend(fontsize="x-small")
    drawing.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", nargs="?", default="grid", choices=["grid", "optuna", "asha", "population"])
    parser.add_argument("--plot", type=Path, default=Path("search_digits.png"), help="where the curves are drawn")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as storage:
        results = build_tuner(arguments.kind, storage).fit()
        for one in sorted(results, key=lambda one: -one.metrics.get("acc", 0))[:3]:
            print(f"{one.metrics.get('acc', 0):.3f} {json.dumps(one.config)} ({one.reason})")
        print("best", json.dumps(results.get_best_result().config))
        draw(results, arguments.plot)


if __name__ == "__main__":
    main()
