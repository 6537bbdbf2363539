"""Searches: what a trial costs, beside Ray Tune and Optuna's own threads.

python benchmarks/tune.py

Ray Tune runs 50 trials where the others run 1,000: more take it minutes. `optuna` is `study.optimize(n_jobs=2)` in
memory, whose trials are calls in two threads.
"""

import subprocess
import sys
import tempfile
import textwrap

from _harness import Row, Settings, build_environment, parse_settings, show, take_turns

REPORTS = Row(name="50 trials of 5 reports", unit="s", more_is_better=False)
EMPTY = Row(name="an empty trial, random", unit="ms", more_is_better=False)
TPE = Row(name="an empty trial, TPE", unit="ms", more_is_better=False)
GROWTH = Row(name="trial 10,000 against trial 1,000", unit="times", more_is_better=False)
MEMORY = Row(name="the driver's memory for a finished trial", unit="KB", more_is_better=False)
STEPS = Row(name="steps of classes, two workers", unit="steps/s")
RESTORE = Row(name="restoring 10,000 finished trials", unit="s", more_is_better=False)
ROWS = [REPORTS, EMPTY, TPE, GROWTH, MEMORY, STEPS, RESTORE]

TUNE = """
    import os, resource, sys, tempfile, time
    import {name}
    from {name} import tune

    folder = tempfile.mkdtemp()
    {name}.init(num_cpus=2{options})

    def objective(config):
        for step in range(5):
            tune.report({{"score": config["a"] * step}})

    def empty(config):
        return {{"score": config["a"]}}

    def fit(trainable, num_samples, name, **more):
        tuner = tune.Tuner(
            trainable,
            param_space={{"a": tune.uniform(0, 1)}},
            tune_config=tune.TuneConfig(num_samples=num_samples, metric="score", mode="max", **more),
            run_config=tune.RunConfig(name=name, storage_path=folder, verbose=0),
        )
        begin = time.perf_counter()
        found = tuner.fit()
        seconds = time.perf_counter() - begin
        assert len(found) == num_samples and not found.errors
        return seconds

    print("result", fit(objective, 50, "reports"))
"""

OURS = """
    from hocket.tune.search.optuna import OptunaSearch

    def read_memory():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4

    print("result", fit(empty, 1000, "empty"))
    print("result", fit(empty, 1000, "tpe", search_alg=OptunaSearch(seed=1)))

    moments = []

    class Watch(tune.Callback):
        def on_trial_complete(self, iteration, trials, trial, **info):
            if trial.number % 1000 == 999:
                moments.append((time.perf_counter(), read_memory()))

    tuner = tune.Tuner(
        empty,
        param_space={"a": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(num_samples=10_000),
        run_config=tune.RunConfig(name="many", storage_path=folder, verbose=0, callbacks=[Watch()]),
    )
    tuner.fit()
    times = [later[0] - sooner[0] for sooner, later in zip(moments, moments[1:])]
    print("result", times[-1] / times[0])
    print("result", (moments[-1][1] - moments[0][1]) / 9000)

    class Steps(tune.Trainable):
        def step(self):
            return {"score": 1}

    tuner = tune.Tuner(
        Steps,
        param_space={"a": tune.grid_search([1, 2])},
        run_config=tune.RunConfig(name="steps", storage_path=folder, verbose=0, stop={"training_iteration": 5000}),
    )
    begin = time.perf_counter()
    tuner.fit()
    print("result", 10_000 / (time.perf_counter() - begin))

    begin = time.perf_counter()
    found = tune.Tuner.restore(folder + "/many", empty).fit()
    print("result", time.perf_counter() - begin)
    assert len(found) == 10_000
"""

RAY = """
    print("result", fit(empty, 50, "empty"))
    print("missing")
    print("missing")
    print("missing")

    class Steps(tune.Trainable):
        def step(self):
            return {"score": 1}

    tuner = tune.Tuner(
        Steps,
        param_space={"a": tune.grid_search([1, 2])},
        run_config=tune.RunConfig(name="steps", storage_path=folder, verbose=0, stop={"training_iteration": 500}),
    )
    begin = time.perf_counter()
    tuner.fit()
    print("result", 1000 / (time.perf_counter() - begin))
    print("missing")
"""

OPTUNA = """
    import time
    import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def run(objective, count, sampler):
        study = optuna.create_study(direction="maximize", sampler=sampler)
        begin = time.perf_counter()
        study.optimize(objective, n_trials=count, n_jobs=2)
        return time.perf_counter() - begin

    def objective(trial):
        a = trial.suggest_float("a", 0, 1)
        for step in range(5):
            trial.report(a * step, step)
        return a * 4

    def empty(trial):
        return trial.suggest_float("a", 0, 1)

    print("result", run(objective, 50, optuna.samplers.RandomSampler(1)))
    print("result", run(empty, 1000, optuna.samplers.RandomSampler(1)))
    print("result", run(empty, 1000, optuna.samplers.TPESampler(seed=1)))
    for _ in range(4):
        print("missing")
"""


def build_program(side: str) -> str:
    if side == "optuna":
        return textwrap.dedent(OPTUNA)
    options = ", include_dashboard=False, log_to_driver=False, logging_level='ERROR'" if side == "ray" else ""
    begin = TUNE.format(name="ray" if side == "ray" else "hocket", options=options)
    return textwrap.dedent(begin) + textwrap.dedent(RAY if side == "ray" else OURS)


def measure(side: str, settings: Settings) -> list[float | None]:
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        environment = {**build_environment(side, settings), "TMPDIR": folder}
        process = subprocess.run(
            [sys.executable, "-c", build_program(side)],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
            timeout=900,
        )
    lines = [line.split() for line in process.stdout.splitlines() if line.startswith(("result", "missing"))]
    if process.returncode or len(lines) != len(ROWS):
        raise RuntimeError(process.stderr[-2000:])
    found = [float(line[1]) if len(line) > 1 else None for line in lines]
    trials = 50 if side == "ray" else 1000
    return [
        value if value is None or row not in (EMPTY, TPE) else value * 1000 / trials
        for row, value in zip(ROWS, found, strict=True)
    ]


def main() -> int:
    settings = parse_settings(__doc__.splitlines()[0], rounds=3, peers=("ray", "optuna"))
    results = take_turns(ROWS, settings, lambda side: measure(side, settings))
    if results.rows:
        show(results, settings, title="Searches")
    return results.exit_status


if __name__ == "__main__":
    sys.exit(main())
