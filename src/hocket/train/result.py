"""The return value of `fit`."""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from hocket import extras
from hocket._base import markup, texts
from hocket.observe import report as observe_report
from hocket.observe.report import runs as reported_runs
from hocket.observe.runs import history
from hocket.stores import local_files, places, trust
from hocket.train import configs, refusals
from hocket.train.checkpoints import checkpoint as checkpoint_module
from hocket.train.checkpoints import replica, storage
from hocket.train.rank import usage
from hocket.train.run import checkpoint_manager
from hocket.train.tracking import plain, values


@dataclass(frozen=True)
class Result:
    """The result of a finished run.

    Its metrics come from all reports. Ray keeps only metrics of reports with a checkpoint; see `best_checkpoints` for
    those.
    """

    metrics: dict[str, Any] | None = None
    """Rank 0's metrics of the last report. Without a report, the metrics of the checkpoint that the run started from;
    None without either."""
    checkpoint: checkpoint_module.Checkpoint | None = None
    """The latest checkpoint; None if none was saved."""
    error: Exception | None = None
    """Always None, because `fit` raises errors. For programs written for Ray."""
    path: str = ""
    """The run's folder in `filesystem`: an absolute path on this machine, or ``"bucket/runs/name"`` in a store such as
    S3."""
    _: KW_ONLY
    metrics_history: list[dict[str, Any]] = field(default_factory=list)
    """Rank 0's metrics of every report, in order. A step that was repeated after a failure appears once."""
    best_checkpoints: list[tuple[checkpoint_module.Checkpoint, dict[str, Any]]] = field(default_factory=list)
    """The kept checkpoints, each with rank 0's metrics of its report. As in Ray, the best one is the last: by the score
    of `CheckpointConfig`, or without a score the newest."""
    return_value: Any = None
    """The training function's return value in rank 0."""
    statistics: dict[str, Any] = field(default_factory=dict)
    """Counts by the strategy. `ParameterServer` counts the pushes of each ``"staleness"``, the ``"updates"`` of each
    server, and more. Other strategies count nothing."""
    sharding: usage.ShardingUsage | None = None
    """The bytes that the run moved and kept in rank 0, predicted and measured, if its strategy is `Sharded` and it has
    more than one rank; else None."""

    def __repr__(self) -> str:
        facts: dict[str, object] = {"metrics": self.metrics, "reports": len(self.metrics_history)}
        if self.checkpoint is not None:
            facts["checkpoint"] = self.checkpoint
        if self.return_value is not None:
            facts["return_value"] = self.return_value
        shown = ", ".join(
            f"{name}={texts.cut(texts.safe_repr(value), markup.MOST_LETTERS)}" for name, value in facts.items()
        )
        return f"Result({shown}, path={self.path!r})"

    def _repr_html_(self) -> str:
        facts: dict[str, object] = dict(self.metrics or {})
        facts |= {"reports": len(self.metrics_history), "checkpoints": len(self.best_checkpoints)}
        if self.return_value is not None:
            facts["return_value"] = self.return_value
        facts["path"] = self.path
        return markup.write_facts("Result", facts)

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write one HTML file that shows the run: its curves, last metrics, checkpoints, and the strategy's counts.

        The file is self-contained: it opens without a network, and loads nothing.

        Args:
            path: The file. Default: ``report.html`` in the run's folder.

        Returns:
            The file's path.

        Raises:
            TypeError: `path` is not a path.
            ValueError: No path is given, and the run is kept in a store.
            OSError: The file cannot be written.

        Example:
            >>> import tempfile
            >>> from hocket import train
            >>> trainer = train.DataParallelTrainer(
            ...     lambda: [train.report({"loss": 1 / step}) for step in range(1, 5)],
            ...     scaling_config=train.ScalingConfig(num_workers=0),
            ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
            ... )
            >>> trainer.fit().report().name
            'report.html'
        """
        given: object = path
        if given is not None and not isinstance(given, str | os.PathLike):
            raise TypeError(f"path must be a file's path, but received {texts.safe_repr(given)}. Write 'report.html'.")
        if path is None and self._place is not None:
            raise ValueError(
                "path must be given, because the run is kept in a store and has no folder here. Write 'report.html'."
            )
        target = Path(self.path, "report.html") if path is None else Path(path)
        if path is None:
            trust.check_entered(target.parent, "Write report(path)")
        local_files.write(target, _describe(self).write())
        return target

    _committed: tuple[checkpoint_manager.Committed, ...] = field(default=(), repr=False)
    _place: places.Place | None = field(default=None, repr=False)

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], storage_filesystem: object = None) -> Result:
        """Return the result of an earlier run from its folder: its whole checkpoints with their metrics.

        The result lacks reports without a checkpoint, and the training function's value.

        Args:
            path: The run's folder, `Result.path`, or an address such as ``s3://bucket/runs/name``.
            storage_filesystem: The file system of the path, `Result.filesystem`. Default: this machine, unless the path
                is an address.

        Raises:
            RuntimeError: There is no such folder, or no whole checkpoint in it.
            TypeError: The file system has an unknown type.
            ValueError: The scheme of the address is unknown.
            StoreError: The store does not answer, or refuses the request.

        Example:
            >>> import tempfile
            >>> from hocket import train
            >>> def loop():
            ...     with tempfile.TemporaryDirectory() as folder:
            ...         train.report({"loss": 0.5}, train.Checkpoint(folder))
            >>> result = train.DataParallelTrainer(
            ...     loop,
            ...     scaling_config=train.ScalingConfig(num_workers=0),
            ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
            ... ).fit()
            >>> train.Result.from_path(result.path).metrics
            {'loss': 0.5}
        """
        found = places.locate(path, storage_filesystem, "Result.from_path()")
        if isinstance(found, places.Place):
            return _read_stored(found)
        folder = Path(found).expanduser().resolve()
        if not folder.is_dir():
            raise RuntimeError(f"The run's folder {str(folder)!r} does not exist. Pass the path of a run, Result.path.")
        run_storage = storage.Storage(str(folder.parent), folder.name)
        return _read(checkpoint_manager.CheckpointManager(run_storage, configs.CheckpointConfig()), run_storage)

    @property
    def filesystem(self) -> Any:
        """The file system of `path`, as an object of pyarrow.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        place = self._place or places.find_place(self.path, None, "Result.filesystem")
        return place.filesystem

    @property
    def config(self) -> NoReturn:
        """Not supported, as in Ray: only results of tuning have a configuration.

        Raises:
            DeprecationWarning: Always.
        """
        refusals.refuse("Result", "config")

    @property
    def metrics_dataframe(self) -> Any:
        """`metrics_history` as a pandas DataFrame, with a row for each report.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        remedy = "Run pip install pandas, or use Result.metrics_history, a list of dicts."
        return extras.load("pandas", "Result.metrics_dataframe", "pandas", remedy).DataFrame(self.metrics_history)

    def get_best_checkpoint(self, metric: str, mode: str) -> checkpoint_module.Checkpoint | None:
        """Return the kept checkpoint with the best value of a metric; None if there is no checkpoint.

        Args:
            metric: A key of the metrics, such as ``"loss"`` or ``"val/loss"``.
            mode: ``"max"`` or ``"min"``.

        Raises:
            ValueError: The mode is invalid, or no checkpoint's metrics have the key.
        """
        if mode not in ("max", "min"):
            raise ValueError(f"mode must be 'max' or 'min', but received {mode!r}. Write mode='min' for a loss.")
        if not self._committed:
            return None
        with_metric = [record for record in self._committed if plain.get_metric(record.metrics, metric) is not None]
        if not with_metric:
            raise ValueError(
                f"No checkpoint was reported with the metric {metric!r}. Name one of the last checkpoint's metrics: "
                f"{sorted(self._committed[-1].metrics)}."
            )
        return checkpoint_manager.sort_by_metric(with_metric, metric, mode)[0].checkpoint


def _describe(result: Result) -> observe_report.Report:
    """Return the contents of a run's report."""
    try:
        if result._place is not None:
            raise FileNotFoundError
        logged = history.RunHistory(result.path)
    except FileNotFoundError:  # a run of an earlier version, or in a store
        built = _describe_metrics(result)
    else:
        logged.update()
        logged.close()
        built = reported_runs.describe(logged)
    built.facts = {"folder": result.path, **built.facts}
    if result.best_checkpoints:
        built.tables["Checkpoints, the best one last"] = [
            {"path": kept.path, **dict(values.flatten(metrics))} for kept, metrics in result.best_checkpoints
        ]
    if result.statistics:
        built.tables["The strategy's statistics"] = [
            {"what": what, "value": value} for what, value in values.flatten(result.statistics)
        ]
    return built


def _describe_metrics(result: Result) -> observe_report.Report:
    """Return the contents of a report from rank 0's metrics alone."""
    rows = [values.list_numbers(metrics) for metrics in result.metrics_history]
    has_steps = bool(rows) and all(math.isfinite(row.get("step", math.nan)) for row in rows)
    steps = [row["step"] if has_steps else number for number, row in enumerate(rows, 1)]
    built = observe_report.Report(
        title=Path(result.path).name or "run",
        facts={"reports": len(rows), **dict(values.flatten(result.metrics or {}))},
        step_name="step" if has_steps else "report",
    )
    for key in dict.fromkeys(key for row in rows for key in row if not (has_steps and key == "step")):
        at = [number for number, row in enumerate(rows) if key in row]
        built.curves.append(
            observe_report.Curve(
                name=key, steps=[steps[number] for number in at], values=[rows[number][key] for number in at]
            )
        )
    return built


def _read(
    manager: checkpoint_manager.CheckpointManager, run_storage: storage.Storage, place: places.Place | None = None
) -> Result:
    if not manager.committed:
        shown = str(run_storage.path) if place is None else place.shown
        raise RuntimeError(
            f"The folder {shown!r} holds no complete checkpoint, so it cannot be read as a run. Pass the path of a run "
            "(Result.path), not of one of its checkpoints."
        )
    history = [record.metrics for record in manager.committed]
    return build(manager, history, run_storage, None, place=place)


def _read_stored(place: places.Place) -> Result:
    """Return the result of a run in a store, from its manifests alone."""
    run_storage = storage.Storage(os.devnull, place.name)  # the run has no files on this machine
    stored = replica.Replica(place, run_storage)
    manager = checkpoint_manager.CheckpointManager(run_storage, configs.CheckpointConfig(), None, stored)
    return _read(manager, run_storage, place)


def build(
    manager: checkpoint_manager.CheckpointManager,
    history: list[dict[str, Any]],
    run_storage: storage.Storage,
    returned: object,
    statistics: dict[str, Any] | None = None,
    sharding: usage.ShardingUsage | None = None,
    place: places.Place | None = None,
) -> Result:
    """Return the result of a run.

    Args:
        manager: The run's checkpoints.
        history: Rank 0's metrics of every report.
        run_storage: The run's folder on this machine.
        returned: The training function's value in rank 0.
        statistics: The strategy's counts.
        sharding: The bytes that the run moved and kept.
        place: The run's folder in a store, if the run is kept in one.
    """
    published = [dataclasses.replace(record, checkpoint=manager.publish(record)) for record in manager.committed]
    return Result(
        metrics=history[-1] if history else manager.committed[-1].metrics if manager.committed else None,
        metrics_history=history,
        checkpoint=published[-1].checkpoint if published else None,
        path=str(run_storage.path) if place is None else place.path,
        best_checkpoints=[(manager.publish(record), record.metrics) for record in reversed(manager.sort_by_score())],
        return_value=returned,
        statistics=statistics or {},
        sharding=sharding,
        _committed=tuple(published),
        _place=place,
    )
