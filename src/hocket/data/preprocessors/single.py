"""Preprocessors that make columns from columns: all except chains."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from hocket._base import texts
from hocket.data import blocks, columns
from hocket.data.arrow import frames
from hocket.data.preprocessors import base


class Single(base.Preprocessor):
    """A preprocessor that makes columns from columns. A subclass is a dataclass with the arguments as fields."""

    _may_lack_inputs: ClassVar[bool] = False
    """Whether input columns may be missing."""

    @abc.abstractmethod
    def _compute(self, block: blocks.Block) -> Mapping[str, object]:
        """Return the output columns of a block."""

    def _list_arguments(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in _list_fields(self)}

    def _list_shown(self) -> dict[str, object]:
        defaults = {one.name: repr(one.default) for one in _list_fields(self)}
        shown = {name: value for name, value in self._list_arguments().items() if repr(value) != defaults[name]}
        if shown.get("output_columns") == shown.get("columns"):
            shown.pop("output_columns", None)
        return shown

    def _apply(self, block: blocks.Block) -> blocks.Block:
        if not block.num_rows:
            return blocks.Block({}, 0)
        made = self._build_outputs(block, list(block.columns))
        dropped = self._list_dropped()
        kept = {name: column for name, column in block.columns.items() if name not in dropped}
        return blocks.Block({**kept, **made.columns}, block.num_rows)

    def _apply_to_batch(self, batch: blocks.Batch) -> blocks.Batch:
        names = [name for name in self.get_input_columns() if name in batch]
        dropped = self._list_dropped()
        if frames.is_frame(batch):
            found = blocks.Block(
                blocks.build(frames.read_frame(batch[names]), "A batch").columns if names else {}, len(batch)
            )
            made = self._build_outputs(found, list(batch.columns))
            kept = batch.drop(columns=[name for name in dropped if name in batch])
            return kept.assign(**{name: _build_series(made, name, batch.index) for name in made.columns})
        if not isinstance(batch, Mapping):
            raise TypeError(
                "transform_batch() takes a dict of arrays or a pandas DataFrame, but received "
                f"{texts.name_kind(batch)}: {batch!r:.80}. Write {{'x': array}}; for a data set, call transform()."
            )
        num_rows = len(next(iter(batch.values()), ()))
        picked = {name: batch[name] for name in names}
        found = blocks.build(picked, "A batch") if picked else blocks.Block({}, num_rows)
        made = self._build_outputs(found, list(batch))
        kept = {name: values for name, values in batch.items() if name not in dropped}
        return {**kept, **{name: columns.to_numpy(column) for name, column in made.columns.items()}}

    def _apply_to_row(self, row: Mapping[str, object]) -> blocks.Row:
        picked = {name: columns.build_from_values([row[name]]) for name in self.get_input_columns() if name in row}
        made = self._build_outputs(blocks.Block(picked, 1), list(row))
        dropped = self._list_dropped()
        kept = {name: value for name, value in row.items() if name not in dropped}
        return {**kept, **next(made.list_rows())}

    def _build_outputs(self, block: blocks.Block, names: Sequence[str]) -> blocks.Block:
        if not self._may_lack_inputs:
            blocks.check_columns(self.get_input_columns(), names)
        return blocks.build(self._compute(block), f"The result of {type(self).__name__}")


class PerColumn(Single):
    """A preprocessor that makes one output column from each input column."""

    columns: Sequence[str]
    output_columns: Sequence[str] | None

    def _check_arguments(self) -> None:
        self.columns = check_names(self, "columns", self.columns)
        given = self.output_columns
        self.output_columns = check_names(self, "output_columns", given) if given else list(self.columns)
        if len(self.output_columns) != len(self.columns):
            raise ValueError(
                f"output_columns must have a name for each of columns, but received {self.output_columns} for "
                f"{self.columns}. Leave it out to replace the columns."
            )

    def get_input_columns(self) -> list[str]:
        return list(self.columns)

    def get_output_columns(self) -> list[str]:
        return list(self.output_columns or self.columns)

    def _list_pairs(self) -> Iterator[tuple[str, str]]:
        """Yield the pairs of an input column and its output column."""
        return zip(self.get_input_columns(), self.get_output_columns(), strict=True)


def check_names(who: object, what: str, given: object) -> list[str]:
    """Check names of columns, and return them as a list."""
    kind = type(who).__name__
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(one, str) for one in given):
        raise TypeError(f"{what} of {kind} must be a list of names, but received {given!r:.80}. Write ['x', 'y'].")
    names = list(given)
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{what} of {kind} must name columns, each once, but received {names}. Write ['x', 'y'].")
    return names


def _list_fields(preprocessor: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(preprocessor)


def _build_series(made: blocks.Block, name: str, index: object) -> Any:
    return frames.build_frame({name: made.columns[name]}, made.num_rows)[name].set_axis(index)
