"""Several preprocessors as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, final

from hocket.data import blocks, dataset
from hocket.data.preprocessors import base


@final
class Chain(base.Preprocessor):
    """Preprocessors in sequence. Each learns from the output of the one before.

    Args:
        *preprocessors: The preprocessors, in their order.

    Raises:
        TypeError: An argument is no preprocessor.
        ValueError: There is no preprocessor.

    Example:
        >>> from hocket import data
        >>> from hocket.data.preprocessors import Chain, Concatenator, StandardScaler
        >>> chain = Chain(StandardScaler(["x", "y"]), Concatenator(["x", "y"], "features"))
        >>> rows = data.from_items([{"x": 1, "y": 10}, {"x": 3, "y": 30}])
        >>> chain.fit_transform(rows).take_all()
        [{'features': array([-1., -1.])}, {'features': array([1., 1.])}]
    """

    def __init__(self, *preprocessors: base.Preprocessor) -> None:
        self._preprocessors = preprocessors
        self.__post_init__()

    def __repr__(self) -> str:
        return f"Chain({', '.join(map(repr, self._preprocessors))})"

    @property
    def preprocessors(self) -> tuple[base.Preprocessor, ...]:
        """The members, which hold the results of learning."""
        return self._preprocessors

    def fit_status(self) -> base.FitStatus:
        found = {one.fit_status() for one in self._preprocessors} - {base.FitStatus.NOT_FITTABLE}
        if len(found) > 1:
            return base.FitStatus.PARTIALLY_FITTED
        return found.pop() if found else base.FitStatus.NOT_FITTABLE

    def get_input_columns(self) -> list[str]:
        made: set[str] = set()
        read: dict[str, None] = {}
        for one in self._preprocessors:
            read.update(dict.fromkeys(name for name in one.get_input_columns() if name not in made))
            made.update(one.get_output_columns())
        return list(read)

    def get_output_columns(self) -> list[str]:
        made: dict[str, None] = {}
        for one in self._preprocessors:
            made = {name: None for name in made if name not in one._list_dropped()}
            made.update(dict.fromkeys(one.get_output_columns()))
        return list(made)

    def _check_arguments(self) -> None:
        for one in self._preprocessors:
            if not isinstance(one, base.Preprocessor):
                raise TypeError(
                    f"Chain() takes preprocessors, but received {one!r:.80}. Write Chain(StandardScaler(['x']))."
                )
        if not self._preprocessors:
            raise ValueError("Chain() received no preprocessor. Write Chain(StandardScaler(['x'])).")

    def _can_be_fitted(self) -> bool:
        return any(one._can_be_fitted() for one in self._preprocessors)

    def _fit(self, ds: dataset.Dataset) -> base.Stats:
        before = [(one, dict(vars(one))) for one in self._list_members()]
        *others, last = self._preprocessors
        try:
            for one in others:
                ds = one.fit_transform(ds)
            last.fit(ds)
        except BaseException:
            for one, attributes in before:
                vars(one).clear()
                vars(one).update(attributes)
            raise
        return {}

    def _list_members(self) -> Iterator[base.Preprocessor]:
        """Yield the members, and the members of those that are chains."""
        for one in self._preprocessors:
            yield one
            if isinstance(one, Chain):
                yield from one._list_members()

    def _apply(self, block: blocks.Block) -> blocks.Block:
        for one in self._preprocessors:
            block = one._apply(block)
        return block

    def _apply_to_batch(self, batch: blocks.Batch) -> blocks.Batch:
        for one in self._preprocessors:
            batch = one._apply_to_batch(batch)
        return batch

    def _apply_to_row(self, row: Mapping[str, object]) -> blocks.Row:
        found = dict(row)
        for one in self._preprocessors:
            found = one._apply_to_row(found)
        return found

    def _list_dropped(self) -> Sequence[str]:
        dropped = dict.fromkeys(name for one in self._preprocessors for name in one._list_dropped())
        return [name for name in dropped if name not in self.get_output_columns()]

    def _list_arguments(self) -> dict[str, object]:
        return {"preprocessors": list(self._preprocessors)}

    @classmethod
    def _build(cls, arguments: Mapping[str, Any], stats: base.Stats) -> Self:
        made = cls(*arguments["preprocessors"])
        made.stats_ = stats
        return made

    def _copy(self) -> Self:
        return type(self)(*(one._copy() for one in self._preprocessors))
