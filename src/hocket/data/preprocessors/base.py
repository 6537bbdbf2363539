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
from hocket.data import blocks, calls, dataset, reading
from hocket.data.preprocessors import saving
from hocket.stores import local_files

Stats: TypeAlias = dict[str, Any]
"""What was learnt: numbers and categories, by names such as ``mean(x)``."""


@final
class FitStatus(enum.StrEnum):
    """Whether a preprocessor has learnt what it needs."""

    NOT_FITTABLE = "NOT_FITTABLE"
    """There is nothing to learn."""
    NOT_FITTED = "NOT_FITTED"
    PARTIALLY_FITTED = "PARTIALLY_FITTED"
    """Some members of a chain have learnt, and others have not."""
    FITTED = "FITTED"


@final
class PreprocessorNotFittedException(RuntimeError):  # noqa: N818 (Ray's name)
    """A preprocessor is to transform, and has learnt nothing yet."""


class Preprocessor:
    """A transformation of rows that is learnt from a data set, and can be saved.

    What `transform`, `transform_batch` and `transform_row` return is the same for the same rows, in whatever blocks and
    batches these come. A data set that was returned keeps what had been learnt then, also if `fit` is called again.
    Not for several threads at once while one of them calls `fit`.

    A class of the program's own has ``_transform_numpy(batch)``, ``_transform_pandas`` or ``_transform_arrow``, and
    ``_fit(dataset)``, which keeps what it learns in attributes; without it, ``_is_fittable = False``.
    """

    FitStatus: ClassVar[TypeAlias] = FitStatus

    _is_fittable: ClassVar[bool] = True
    _has_learnt: bool = False

    stats_: Stats
    """What was learnt. Empty before `fit`, and where there is nothing to learn."""

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
        """Learn from a data set what the transformation needs, and return this preprocessor.

        What was learnt before is replaced; if it fails, it is kept.

        Raises:
            TypeError: This is no data set, or a column holds values of the wrong kind.
            KeyError: There is no such column.
            ValueError: There are no rows, or values from which this cannot be learnt.
        """
        check_dataset(f"{type(self).__name__}.fit", ds)
        if self.fit_status() is not FitStatus.NOT_FITTABLE:
            found = self._fit(ds)
            self.stats_ = found if isinstance(found, dict) else getattr(self, "stats_", {})
            self._has_learnt = True
        return self

    def fit_status(self) -> FitStatus:
        """Return whether it has learnt what it needs."""
        if not self._can_be_fitted():
            return FitStatus.NOT_FITTABLE
        return FitStatus.FITTED if self._has_learnt or getattr(self, "stats_", None) else FitStatus.NOT_FITTED

    @property
    def has_been_fitted(self) -> bool:
        """Whether it has learnt all it needs. False where there is nothing to learn; see `fit_status`."""
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
        """Return a data set with the transformation as a step more. It runs when rows are read.

        Columns that are not transformed stay as they are.

        Args:
            ds: The data set.
            batch_size: How many rows a class of the program's own is given at once. Default: whole blocks.
            num_cpus: How many CPUs a task holds. Default: 1.
            memory: How many bytes of memory.
            concurrency: How many tasks there are at most. Default: as many as there is room for.

        Raises:
            PreprocessorNotFittedException: `fit` was not called.
            TypeError: This is no data set. A column of the wrong kind raises when rows are asked for.
            KeyError: There is no such column. Raised when rows are asked for.
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
        """Return a batch transformed: a dict of arrays for a dict, a DataFrame for a DataFrame. The one given stays.

        Raises:
            PreprocessorNotFittedException: `fit` was not called.
            TypeError: It is no batch, or a column holds values of the wrong kind.
            KeyError: There is no such column.
            ValueError: A value cannot be transformed.
        """
        check_fitted(self, "transform_batch")
        return self._apply_to_batch(data)

    @keywords.guard
    def transform_row(self, row: Mapping[str, Any]) -> blocks.Row:
        """Return a row transformed, as `Dataset.take` would give it: for one request at a time.

        Raises:
            PreprocessorNotFittedException: `fit` was not called.
            TypeError: It is no dict, or a value is of the wrong kind.
            KeyError: There is no such column.
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
        """Return the columns that are read, as far as that is known."""
        return []

    def get_output_columns(self) -> list[str]:
        """Return the columns that are written; see `get_input_columns`."""
        return []

    # --- saving -------------------------------------------------------------------------------------------------------

    def serialize(self) -> str:
        """Return the arguments and what was learnt as JSON.

        A function among them is saved by its name, so it has to stand in a module.

        Raises:
            TypeError: A value has no form in JSON, such as a lambda. Pickle the preprocessor instead.
        """
        return saving.write(self)

    @staticmethod
    def deserialize(serialized: str, *, allow_functions: bool = False) -> Preprocessor:
        """Return the preprocessor that `serialize` wrote.

        Args:
            serialized: The JSON.
            allow_functions: Whether to import the functions that it names. Whoever wrote it chooses what is imported
                and called, so only say True of what you trust.

        Raises:
            ValueError: It is no preprocessor, or it names functions.
        """
        made = saving.read(serialized, allow_functions=allow_functions)
        assert isinstance(made, Preprocessor)
        return made

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file with what `serialize` returns.

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
        """Raise if the arguments cannot be; give them their final form."""

    def _can_be_fitted(self) -> bool:
        """Return whether there is something to learn."""
        return self._is_fittable

    def _fit(self, ds: dataset.Dataset) -> Any:
        """Return what is learnt from a data set; or keep it, and return anything else."""
        raise NotImplementedError(f"{type(self).__name__} has no _fit(dataset). Write one; or _is_fittable = False.")

    def _apply(self, block: blocks.Block) -> blocks.Block:
        """Return a block transformed. Runs in tasks."""
        return blocks.build_from_batch(_call_own(self, block), f"What {type(self).__name__} returns")

    def _apply_to_batch(self, batch: blocks.Batch) -> blocks.Batch:
        """Return a batch transformed."""
        return _call_own(self, blocks.build_from_batch(batch, "A batch"))

    def _apply_to_row(self, row: Mapping[str, object]) -> blocks.Row:
        """Return a row transformed."""
        return next(self._apply(blocks.build_from_rows([row], "A row")).list_rows())

    def _list_arguments(self) -> dict[str, object]:
        """Return what it was made from."""
        return {name: value for name, value in vars(self).items() if name not in ("stats_", "_has_learnt")}

    def _list_dropped(self) -> Sequence[str]:
        """Return the columns that are left out."""
        return ()

    def _list_shown(self) -> dict[str, object]:
        """Return the arguments that `repr` shows."""
        return self._list_arguments()

    @classmethod
    def _build(cls, arguments: Mapping[str, object], stats: Stats) -> Self:
        """Return what `_list_arguments` and `stats_` describe."""
        made = _build_own(cls, arguments) or cls(**arguments)
        made.stats_ = stats
        return made

    def _copy(self) -> Self:
        """Return one that a later `fit` does not change."""
        return copy.copy(self)


def check_fitted(one: Preprocessor, verb: str) -> None:
    """Raise if it has not learnt."""
    if one.fit_status() in (FitStatus.NOT_FITTED, FitStatus.PARTIALLY_FITTED):
        raise PreprocessorNotFittedException(
            f"{one!r} cannot {verb}(), because it has not learnt from data yet. Call fit(dataset) first, or "
            "fit_transform(dataset)."
        )


P = TypeVar("P", bound=Preprocessor)


def _find_transform(own: Preprocessor) -> tuple[str, Callable[[Any], Any]]:
    """Return in which form a class of the program's own takes batches, and its method that does."""
    for form, name in (("numpy", "numpy"), ("pandas", "pandas"), ("pyarrow", "arrow")):
        function: Callable[[Any], Any] | None = getattr(own, f"_transform_{name}", None)
        if function is not None:
            return form, function
    raise NotImplementedError(
        f"{type(own).__name__} transforms nothing. Write _transform_numpy(self, batch), or _transform_pandas."
    )


def _call_own(own: Preprocessor, block: blocks.Block) -> Any:
    form, function = _find_transform(own)
    return function(block.to_batch(form, is_owned=True))


def _build_own(kind: type[P], attributes: Mapping[str, object]) -> P | None:
    """Return an instance of a class of the program's own, whose constructor nobody knows; None if it is one of ours."""
    if kind._list_arguments is not Preprocessor._list_arguments:
        return None
    made = kind.__new__(kind)
    vars(made).update(attributes, _has_learnt=True)
    return made


@final
@dataclass(frozen=True, repr=False)
class NamedStep:
    """The transformation of each block, and its name in plans and messages."""

    name: str
    function: Callable[[blocks.Block], blocks.Block]

    def __call__(self, block: blocks.Block) -> blocks.Block:
        return self.function(block)

    def __repr__(self) -> str:
        return self.name


def add_step(
    ds: dataset.Dataset, verb: str, step: NamedStep, *, keeps_rows: bool = True, **how: object
) -> dataset.Dataset:
    """Return a data set with a step more, which is given blocks as they are. `map_batches` would make numpy arrays of
    all columns: whole numbers of which one is missing would become floats."""
    call = calls.read_call(verb, step, {name: value for name, value in how.items() if value is not None})
    return ds._then(call.build(_call, keeps_rows=keeps_rows))


def _call(
    block: blocks.Block, *, function: NamedStep, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> blocks.Block:
    return function(block)


def check_dataset(verb: str, given: object) -> None:
    """Raise if something is no data set."""
    if not isinstance(given, dataset.Dataset):
        raise TypeError(
            f"{verb}() takes a data set, but received {texts.name_kind(given)}: {given!r:.80}. Make one, as with "
            "data.from_pandas(frame), or call transform_batch()."
        )
