"""Where Ray has its hyperparameter search. There is none here yet, and importing this says what to write instead."""

from __future__ import annotations

raise ImportError(
    "Hocket has no hyperparameter search yet. Leave this import out, and call fit() once for each configuration: "
    "results = [TorchTrainer(train_func, train_loop_config=config).fit() for config in configs]; best = min(results, "
    "key=lambda result: result.metrics['loss']). Or search with Optuna, in whose objective a trainer's fit() is "
    "called."
)
