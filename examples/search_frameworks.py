"""Searches with several frameworks, each with its own hyperparameters, on scikit-learn's digits.

    python examples/search_frameworks.py strategies # one training function, with several strategies and world sizes
    python examples/search_frameworks.py keras      # Keras reports epochs, and bad trials are stopped early
    python examples/search_frameworks.py jax        # a jitted step, with Optuna
    python examples/search_frameworks.py boosters   # scikit-learn and XGBoost, each with hyperparameters of its own

Each prints its trials as a table, and the best configuration.
"""

import argparse
import tempfile
from typing import Any

import numpy as np
from sklearn import datasets, ensemble

from hocket import train, tune
from hocket.tune.integration.ray_train import TuneReportCallback
from hocket.tune.schedulers import ASHAScheduler
from hocket.tune.search.optuna import OptunaSearch


def load_data() -> tuple[Any, Any, Any, Any]:
    """Return images and labels to train on, and others to test with."""
    images, labels = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = (images[order] / 16).astype(np.float32), labels[order]
    return images[:1500], labels[:1500], images[1500:], labels[1500:]


def train_with_torch(config: dict[str, Any]) -> None:
    """Train in a rank; the function is the same for every strategy and number of workers."""
    import torch

    from hocket.train.torch import prepare_data_loader, prepare_model, prepare_optimizer

    images, labels, test_images, test_labels = map(torch.tensor, load_data())
    rows = torch.utils.data.TensorDataset(images, labels)
    loader = prepare_data_loader(torch.utils.data.DataLoader(rows, batch_size=32, shuffle=True))
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model = prepare_model(net)
    optimizer = prepare_optimizer(torch.optim.SGD(model.parameters(), lr=config["lr"]))
    for _ in range(3):
        for batch, wanted in loader:
            optimizer.zero_grad()
            loss: Any = torch.nn.functional.cross_entropy(model(batch), wanted)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            train.report({"acc": float((net(test_images).argmax(dim=1) == test_labels).float().mean())})


def search_strategies(storage: str) -> tune.Tuner:
    """Return a search in which each trial fits a trainer of its own."""
    from hocket.train.torch import AllReduce, LocalSGD, TorchTrainer

    strategies = {"all-reduce": AllReduce(), "local": LocalSGD(sync_every=8)}

    def fit(config: dict[str, Any]) -> None:
        TorchTrainer(
            train_with_torch,
            train_loop_config={"lr": config["lr"]},
            strategy=strategies[config["strategy"]],
            scaling_config=train.ScalingConfig(num_workers=config["num_workers"]),
            run_config=train.RunConfig(
                storage_path=tune.get_context().get_trial_dir(), callbacks=[TuneReportCallback()]
            ),
        ).fit()

    return tune.Tuner(
        tune.with_resources(fit, {"cpu": 0}),  # the trainer's workers hold CPUs
        param_space={
            "lr": 0.1,
            "strategy": tune.grid_search(list(strategies)),
            "num_workers": tune.grid_search([1, 2]),
        },
        tune_config=tune.TuneConfig(metric="acc", mode="max", max_concurrent_trials=1),
        run_config=tune.RunConfig(name="strategies", storage_path=storage),
    )


def train_with_keras(config: dict[str, Any]) -> None:
    """Train with Keras's own loop; a callback reports each epoch."""
    import keras

    from hocket.train.keras import ReportCheckpointCallback

    images, labels, *tests = load_data()
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(config["width"], "relu"), keras.layers.Dense(10, "softmax")]
    )
    model.compile(keras.optimizers.Adam(config["lr"]), "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(
        images,
        labels,
        batch_size=32,
        epochs=4,
        validation_data=tuple(tests),
        verbose=0,
        callbacks=[ReportCheckpointCallback(metrics={"acc": "val_accuracy"})],
    )


def search_keras(storage: str) -> tune.Tuner:
    """Return a search that stops trials which are worse than others after an epoch."""
    return tune.Tuner(
        train_with_keras,
        param_space={"lr": tune.loguniform(1e-4, 1e-1), "width": tune.choice([16, 64])},
        tune_config=tune.TuneConfig(
            metric="acc", mode="max", num_samples=4, seed=0, scheduler=ASHAScheduler(max_t=4, reduction_factor=2)
        ),
        run_config=tune.RunConfig(name="keras", storage_path=storage),
    )


def train_with_jax(config: dict[str, Any]) -> dict[str, float]:
    """Train a softmax regression; the return value is the trial's report."""
    import jax
    import jax.numpy as jnp

    images, labels, test_images, test_labels = load_data()

    def compute_loss(weights: Any, rows: Any, wanted: Any) -> Any:
        scores = jax.nn.log_softmax(rows @ weights)
        penalty = config["decay"] * jnp.square(weights).sum()
        return penalty - jnp.take_along_axis(scores, wanted[:, None], axis=1).mean()

    def step(weights: Any, rows: Any, wanted: Any) -> Any:
        return weights - config["lr"] * jax.grad(compute_loss)(weights, rows, wanted)

    jitted = jax.jit(step)
    weights = jnp.zeros((64, 10))
    for _ in range(5):
        for first in range(0, len(images), 100):
            weights = jitted(weights, images[first : first + 100], labels[first : first + 100])
    return {"acc": float((jnp.argmax(test_images @ weights, axis=1) == test_labels).mean())}


def search_jax(storage: str) -> tune.Tuner:
    """Return a search by Optuna; with `deterministic` it is the same for any number of workers."""
    return tune.Tuner(
        train_with_jax,
        param_space={"lr": tune.loguniform(1e-3, 1), "decay": tune.loguniform(1e-6, 1e-2)},
        tune_config=tune.TuneConfig(
            metric="acc",
            mode="max",
            num_samples=8,
            search_alg=OptunaSearch(seed=0),
            max_concurrent_trials=2,
            deterministic=True,
        ),
        run_config=tune.RunConfig(name="jax", storage_path=storage),
    )


def boost(config: dict[str, Any]) -> None:
    """Train with one of two libraries, each with its own hyperparameters."""
    images, labels, test_images, test_labels = load_data()
    model = config["model"]
    if model["kind"] == "forest":
        forest = ensemble.RandomForestClassifier(model["trees"], max_depth=model["depth"], random_state=0)
        tune.report({"acc": float(forest.fit(images, labels).score(test_images, test_labels))})
        return
    import xgboost

    from hocket.tune.integration.xgboost import TuneReportCheckpointCallback

    tests = xgboost.DMatrix(test_images, label=test_labels)
    xgboost.train(
        {"objective": "multi:softmax", "num_class": 10, "eval_metric": "merror", "eta": model["eta"], "nthread": 1},
        xgboost.DMatrix(images, label=labels),
        num_boost_round=10,
        evals=[(tests, "test")],
        verbose_eval=False,
        callbacks=[
            TuneReportCheckpointCallback(results_postprocessing_fn=lambda found: {"acc": 1 - found["test-merror"]})
        ],
    )


def draw_model(spec: Any) -> dict[str, Any]:
    """Draw hyperparameters for the kind of model that was drawn before."""
    rng = np.random.default_rng(spec.config.seed)
    if spec.config.kind == "forest":
        return {"kind": "forest", "trees": int(rng.integers(10, 100)), "depth": int(rng.integers(2, 12))}
    return {"kind": "xgboost", "eta": float(10 ** rng.uniform(-2, 0))}


def search_boosters(storage: str) -> tune.Tuner:
    """Return a search over a space with conditions."""
    return tune.Tuner(
        boost,
        param_space={
            "kind": tune.grid_search(["forest", "xgboost"]),
            "seed": tune.randint(0, 1000),
            "model": tune.sample_from(draw_model),
        },
        tune_config=tune.TuneConfig(metric="acc", mode="max", num_samples=3, seed=0),
        run_config=tune.RunConfig(name="boosters", storage_path=storage),
    )


SEARCHES = {"strategies": search_strategies, "keras": search_keras, "jax": search_jax, "boosters": search_boosters}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", nargs="?", default="jax", choices=SEARCHES)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as storage:
        results = SEARCHES[arguments.kind](storage).fit()
        print(results.report())
        best = results.get_best_result()
        print(f"best {best.metrics['acc']:.3f} {best.config}")


if __name__ == "__main__":
    main()
