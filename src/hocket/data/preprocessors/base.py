"""Preprocessors learn from a data set, and transform data sets, batches and rows."""

from __future__ import annotations

import copy
import enum
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias, TypeVar, final

from hocket import keywords
from hocket._base import texts
from hocket.data import blocks, calls, dataset, reading, steps
from hocket.data.preprocessors import saving
from hocket.stores import local_files

Stats: TypeAlias = dict[str, Any]
"""The results of learning: numbers and categories, by names such as ``mean(x)``."""


@final
class FitStatus(enum.StrEnum):
    """The progress of a preprocessor's learning."""

    NOT_FITTABLE = "NOT_FITTABLE"
    """There is nothing to learn."""
    NOT_FITTED = "NOT_FITTED"
    PARTIALLY_FITTED = "PARTIALLY_FITTED"
    """Some members of a chain have learnt, and others have not."""
    FITTED = "FITTED"


@final
class PreprocessorNotFittedException(RuntimeError):  # noqa: N818 (Ray's name)
    """A preprocessor was called to transform before it learnt from data."""


class Preprocessor:
    """A transformation of rows that is learnt from a data set, and can be saved.

    For the same rows, `transform`, `transform_batch` and `transform_row` return the same, however the rows are cut into
    blocks and batches. A returned data set keeps its transformation if `fit` is called again. While one thread calls
    `fit`, no other may use the preprocessor.

    A user's own class has ``_transform_numpy(batch)``, ``_transform_pandas`` or ``_transform_arrow``, and
    ``_fit(dataset)``, which keeps its results in attributes. Without ``_fit`` it has ``_is_fittable = False``.
    """

    FitStatus: ClassVar[TypeAlias] = FitStatus

    _is_fittable: ClassVar[bool] = True
    _has_learnt: bool = False

    stats_: Stats
    """The results of learning. Empty before `fit`, and if there is nothing to learn."""

    def __post_init__(self) -> None:
        self.stats_ = {}
        self._check_arguments()

    def __init_subclass__(cls, **how: object) -> None:
        super().__init_subclass__(**how)
        saving.register(cls)

    def __repr__(self) -> str:
        words = [f"{name}={saving.describe(value)}" for name, value in self._list_shown().items()]
        return f"{type(self).__name__}({', '.join(words)})"

    @keywords.guard
    def fit(self, ds: dataset.Dataset) -> Self:
        """Learn the transformation from a data set, and return this preprocessor.

        The results replace earlier ones. If learning fails, the earlier results stay.

        Raises:
            TypeError: `ds` is no data set, or a column holds values of the wrong kind.
            KeyError: A column does not exist.
            ValueError: There are no rows, or the values do not allow learning.
        """
        check_dataset(f"{type(self).__name__}.fit", ds)
        if self.fit_status() is not FitStatus.NOT_FITTABLE:
            found = self._fit(ds)
            self.stats_ = found if isinstance(found, dict) else getattr(self, "stats_", {})
            self._has_learnt = True
        return self

    def fit_status(self) -> FitStatus:
        """Return whether the preprocessor has learnt all it needs."""
        if not self._can_be_fitted():
            return FitStatus.NOT_FITTABLE
        return FitStatus.FITTED if self._has_learnt or getattr(self, "stats_", None) else FitStatus.NOT_FITTED

    @property
    def has_been_fitted(self) -> bool:
        """Whether the preprocessor has learnt all it needs. False if there is nothing to learn; see `fit_status`."""
        return self.fit_status() is FitStatus.FITTED

    @keywords.guard
    def fit_transform(
        self,
        ds: dataset.Dataset,
        *,
        transform_num_cpus: float | None = None,
        transform_memory: float | None = None,
        transform_batch_size: int | None = None,
        transform_concurrency: int | None = None,
    ) -> dataset.Dataset:
        """Learn from a data set, and return it transformed; see `fit` and `transform`."""
        return self.fit(ds).transform(
            ds,
            num_cpus=transform_num_cpus,
            memory=transform_memory,
            batch_size=transform_batch_size,
            concurrency=transform_concurrency,
        )

    @keywords.guard
    def transform(
        self,
        ds: dataset.Dataset,
        *,
        batch_size: int | None = None,
        num_cpus: float | None = None,
        memory: float | None = None,
        concurrency: int | None = None,
    ) -> dataset.Dataset:
        """Return a data set with the transformation as a further step, which runs when rows are read.

        Other columns stay unchanged.

        Args:
            ds: The data set.
            batch_size: How many rows the method of a user's own class receives at once. Default: whole blocks.
            num_cpus: How many CPUs a task holds. Default: 1.
            memory: How many bytes of memory a task holds.
            concurrency: How many tasks run at once, at most. Default: as many as there is room for.

        Raises:
            PreprocessorNotFittedException: `fit` was not called.
            TypeError: `ds` is no data set, or a column is of the wrong kind. The latter is raised when rows are read.
            KeyError: A column does not exist. Raised when rows are read.
        """
        check_dataset(f"{type(self).__name__}.transform", ds)
        reading.check_batch_size(batch_size, may_be_none=True)
        check_fitted(self, "transform")
        how: Any = {"num_cpus": num_cpus, "memory": memory, "concurrency": concurrency}
        if type(self)._apply is Preprocessor._apply:
            form, function = _find_transform(self._copy())
            return ds.map_batches(function, batch_format=form, batch_size=batch_size, **how)
        step = NamedStep(repr(self), self._copy()._apply)
        return add_step(ds, "transform", step, **how)

    @keywords.guard
    def transform_batch(self, data: blocks.Batch) -> blocks.Batch:
        """Transform a batch without changing it: return a dict of arrays for a dict, a DataFrame for a DataFrame.

        Raises:
            PreprocessorNotFittedException: `fit` was not called.
            TypeError: `data` is no batch, or a column holds values of the wrong kind.
            KeyError: A column does not exist.
            ValueError: A value cannot be transformed.
        """
        check_fitted(self, "transform_batch")
        return self._apply_to_batch(data)

    @keywords.guard
    def transform_row(self, row: Mapping[str, Any]) -> blocks.Row:
        """Transform a row, for one request at a time, and return it in the form of `Dataset.take`.

        Raises:
            PreprocessorNotFittedException: `fit` was not called.
            TypeError: `row` is no dict, or a value is of the wrong kind.
            KeyError: A column does not exist.
            ValueError: A value cannot be transformed.
        """
        check_fitted(self, "transform_row")
        if not isinstance(row, Mapping):
            raise TypeError(
                f"transform_row() takes a dict of values by column, but received {texts.name_kind(row)}: {row!r:.80}. "
                "Write transform_row({'x': value}), or transform_batch() for many rows."
            )
        return self._apply_to_row(row)

    def get_input_columns(self) -> list[str]:
        """Return the columns that the preprocessor reads, as far as they are known."""
        return []

    def get_output_columns(self) -> list[str]:
        """Return the columns that the preprocessor writes, as far as they are known."""
        return []

    # --- saving -------------------------------------------------------------------------------------------------------

    def serialize(self) -> str:
        """Return the arguments and the results of learning as JSON.

        JSON holds a function by its name, so the function must be defined in a module.

        Raises:
            TypeError: A value, such as a lambda, has no form in JSON. Pickle the preprocessor instead.
        """
        return saving.write(self)

    @staticmethod
    def deserialize(serialized: str, *, allow_functions: bool = False) -> Preprocessor:
        """Return the preprocessor that `serialize` wrote.

        Args:
            serialized: The JSON.
            allow_functions: Whether to import and call the functions that the JSON names. The author of the JSON
                chooses them, so pass True only for JSON that you trust.

        Raises:
            ValueError: The JSON describes no preprocessor, or names functions that may not be imported.
        """
        made = saving.read(serialized, allow_functions=allow_functions)
        assert isinstance(made, Preprocessor)
        return made

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON that `serialize` returns to a file.

        Raises:
            TypeError: A value has no form in JSON.
        """
        local_files.write(Path(path), self.serialize())

    @staticmethod
    def load(path: str | os.PathLike[str], *, allow_functions: bool = False) -> Preprocessor:
        """Return the preprocessor that `save` wrote; see `deserialize`."""
        return Preprocessor.deserialize(local_files.read_text(path), allow_functions=allow_functions)

    # --- for subclasses -----------------------------------------------------------------------------------------------

    def _check_arguments(self) -> None:
        """Raise if the arguments are invalid; bring them into their final form."""

    def _can_be_fitted(self) -> bool:
        """Return whether there is something to learn."""
        return self._is_fittable

    def _fit(self, ds: dataset.Dataset) -> Any:
        """Return a dict of results, for `stats_`; or keep the results in attributes and return anything else."""
        raise NotImplementedError(
            f"{type(self).__name__} has no _fit(dataset). Write this method, or set _is_fittable = False."
        )

    def _apply(self, block: blocks.Block) -> blocks.Block:
        """Transform a block. Runs in tasks."""
        return blocks.build_from_batch(_call_own(self, block), f"The result of {type(self).__name__}")

    def _apply_to_batch(self, batch: blocks.Batch) -> blocks.Batch:
        """Transform a batch."""
        return _call_own(self, blocks.build_from_batch(batch, "A batch"))

    def _apply_to_row(self, row: Mapping[str, object]) -> blocks.Row:
        """Transform a row."""
        return next(self._apply(blocks.build_from_rows([row], "A row")).list_rows())

    def _list_arguments(self) -> dict[str, object]:
        """Return the arguments of the constructor, or all attributes of a user's own class."""
        return {name: value for name, value in vars(self).items() if name not in ("stats_", "_has_learnt")}

    def _list_dropped(self) -> Sequence[str]:
        """Return the input columns that the result lacks."""
        return ()

    def _list_shown(self) -> dict[str, object]:
        """Return the arguments that `repr` shows."""
        return self._list_arguments()

    @classmethod
    def _build(cls, arguments: Mapping[str, object], stats: Stats) -> Self:
        """Return a preprocessor from the results of `_list_arguments` and `stats_`."""
        made = _build_own(cls, arguments) or cls(**arguments)
        made.stats_ = stats
        return made

    def _copy(self) -> Self:
        """Return a copy that a later `fit` does not change."""
        return copy.copy(self)


def check_fitted(one: Preprocessor, verb: str) -> None:
    """Raise if a preprocessor still has to learn."""
    if one.fit_status() in (FitStatus.NOT_FITTED, FitStatus.PARTIALLY_FITTED):
        raise PreprocessorNotFittedException(
            f"{one!r} cannot {verb}(), because it has not learnt from data yet. Call fit(dataset) first, or "
            "fit_transform(dataset)."
        )


P = TypeVar("P", bound=Preprocessor)


def _find_transform(own: Preprocessor) -> tuple[str, Callable[[Any], Any]]:
    """Return the batch format of a user's own class, and its method that transforms batches."""
    for form, name in (("numpy", "numpy"), ("pandas", "pandas"), ("pyarrow", "arrow")):
        function: Callable[[Any], Any] | None = getattr(own, f"_transform_{name}", None)
        if function is not None:
            return form, function
    raise NotImplementedError(
        f"{type(own).__name__} has no method that transforms. Write _transform_numpy(self, batch), or "
        "_transform_pandas."
    )


def _call_own(own: Preprocessor, block: blocks.Block) -> Any:
    form, function = _find_transform(own)
    return function(block.to_batch(form, is_owned=True))


def _build_own(kind: type[P], attributes: Mapping[str, object]) -> P | None:
    """Build a user's own class without its constructor, which is unknown; return None for a class of this package."""
    if kind._list_arguments is not Preprocessor._list_arguments:
        return None
    made = kind.__new__(kind)
    vars(made).update(attributes, _has_learnt=True)
    return made


@final
@dataclass(frozen=True, repr=False)
class NamedStep:
    """The transformation of each block, with a name for plans and messages."""

    name: str
    function: Callable[[blocks.Block], blocks.Block]

    def __call__(self, block: blocks.Block) -> blocks.Block:
        return self.function(block)

    def __repr__(self) -> str:
        return self.name


def add_step(
    ds: dataset.Dataset, verb: str, step: NamedStep, *, keeps_rows: bool = True, **how: object
) -> dataset.Dataset:
    """Return a data set with a further step, which receives blocks unchanged. `map_batches` would turn all columns into
    numpy arrays: whole numbers with a missing value would become floats."""
    call = calls.read_call(verb, step, {name: value for name, value in how.items() if value is not None})
    return ds._then(call.build(steps.MapBlocks, keeps_rows=keeps_rows))


def check_dataset(verb: str, given: object) -> None:
    """Raise if an argument is no data set."""
    if not isinstance(given, dataset.Dataset):
        raise TypeError(
            f"{verb}() takes a data set, but received {texts.name_kind(given)}: {given!r:.80}. Make one, for example "
            "with data.from_pandas(frame), or call transform_batch()."
        )
