"""Boosted trees over rows that two processes have between them: XGBoost's own collectives add up the histograms.

Written after https://xgboost.readthedocs.io/en/stable/python/python_api.html, "RabitTracker" and "Collective"
(Apache-2.0). `python xgboost_collective.py xgboost` starts the processes with multiprocessing, `python
xgboost_collective.py hocket` as ranks of a trainer; the tracker is XGBoost's, in the process that starts them.
"""

import json
import multiprocessing
import sys
import tempfile

import numpy as np
import xgboost
from xgboost import collective
from xgboost.tracker import RabitTracker


def train_rank(rank: int, tracker: dict) -> dict:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(600, 8)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype(np.float32)
    with collective.CommunicatorContext(**tracker, dmlc_task_id=str(rank)):
        rows = xgboost.DMatrix(x[rank::2], y[rank::2])
        history: dict = {}
        booster = xgboost.train(
            {"objective": "binary:logistic", "eval_metric": ["logloss", "error"], "max_depth": 3, "nthread": 1},
            rows,
            num_boost_round=8,
            evals=[(rows, "train")],
            evals_result=history,
            verbose_eval=False,
        )
        ranks = collective.get_world_size()
    return {"ranks": ranks, "history": history["train"], "trees": booster.get_dump()}


def start_tracker() -> RabitTracker:
    tracker = RabitTracker(n_workers=2, host_ip="127.0.0.1", sortby="task")
    tracker.start()
    return tracker


def run_with_multiprocessing() -> dict:
    tracker = start_tracker()
    arguments = [(rank, tracker.worker_args()) for rank in range(2)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        results = pool.starmap(train_rank, arguments, chunksize=1)
    tracker.wait_for()
    return results[0]


def run_with_hocket() -> dict:
    from hocket import train
    from hocket.train import DataParallelTrainer

    def train_func(config: dict) -> dict:
        return train_rank(train.get_context().get_world_rank(), config)

    tracker = start_tracker()
    result = DataParallelTrainer(
        train_func,
        train_loop_config=tracker.worker_args(),
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
    ).fit()
    tracker.wait_for()
    return result.return_value


if __name__ == "__main__":
    found = run_with_multiprocessing() if sys.argv[1] == "xgboost" else run_with_hocket()
    sys.stdout.write(json.dumps(found) + "\n")
