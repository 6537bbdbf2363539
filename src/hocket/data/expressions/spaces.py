"""Methods of expressions for one kind of values: texts, lists, times, dicts.

Each method calls a function of `functions` by its name.
"""

from __future__ import annotations

import abc
import builtins
from collections.abc import Callable
from typing import Generic, TypeVar, final

E = TypeVar("E")


class _Space(abc.ABC, Generic[E]):
    """Methods for one kind of values.

    Args:
        call: Makes an expression from a function's name and its arguments.
    """

    def __init__(self, call: Callable[..., E]) -> None:
        self._call = call


@final
class Texts(_Space[E]):
    """The methods of columns of texts."""

    def len(self) -> E:
        """Return the number of characters."""
        return self._call("str.len")

    def byte_len(self) -> E:
        """Return the number of bytes in UTF-8."""
        return self._call("str.byte_len")

    def lower(self) -> E:
        """Return the text in lower case."""
        return self._call("str.lower")

    def upper(self) -> E:
        """Return the text in upper case."""
        return self._call("str.upper")

    def capitalize(self) -> E:
        """Return the text with its first letter in upper case and the others in lower case."""
        return self._call("str.capitalize")

    def title(self) -> E:
        """Return the text with the first letter of each word in upper case."""
        return self._call("str.title")

    def swapcase(self) -> E:
        """Return the text with lower and upper case exchanged."""
        return self._call("str.swapcase")

    def reverse(self) -> E:
        """Return the text in reverse order."""
        return self._call("str.reverse")

    def strip(self, characters: str | None = None) -> E:
        """Return the text without white space, or without these characters, at both ends."""
        return self._call("str.strip", characters=characters)

    def lstrip(self, characters: str | None = None) -> E:
        """Return the text without white space, or without these characters, at the start."""
        return self._call("str.lstrip", characters=characters)

    def rstrip(self, characters: str | None = None) -> E:
        """Return the text without white space, or without these characters, at the end."""
        return self._call("str.rstrip", characters=characters)

    def starts_with(self, pattern: str, ignore_case: bool = False) -> E:
        """Return whether the text starts with `pattern`."""
        return self._call("str.starts_with", pattern=pattern, ignore_case=ignore_case)

    def ends_with(self, pattern: str, ignore_case: bool = False) -> E:
        """Return whether the text ends with `pattern`."""
        return self._call("str.ends_with", pattern=pattern, ignore_case=ignore_case)

    def contains(self, pattern: str, ignore_case: bool = False) -> E:
        """Return whether the text contains `pattern`."""
        return self._call("str.contains", pattern=pattern, ignore_case=ignore_case)

    def match_regex(self, pattern: str, ignore_case: bool = False) -> E:
        """Return whether a regular expression (RE2) matches a part of the text."""
        return self._call("str.match_regex", pattern=pattern, ignore_case=ignore_case)

    def find(self, pattern: str, ignore_case: bool = False) -> E:
        """Return the byte at which `pattern` first occurs in the text; -1 if it does not occur."""
        return self._call("str.find", pattern=pattern, ignore_case=ignore_case)

    def count(self, pattern: str, ignore_case: bool = False) -> E:
        """Return how often `pattern` occurs in the text."""
        return self._call("str.count", pattern=pattern, ignore_case=ignore_case)

    def count_regex(self, pattern: str, ignore_case: bool = False) -> E:
        """Return how often a regular expression (RE2) matches in the text."""
        return self._call("str.count_regex", pattern=pattern, ignore_case=ignore_case)

    def find_regex(self, pattern: str, ignore_case: bool = False) -> E:
        """Return the byte at which a regular expression (RE2) first matches in the text; -1 if it does not match."""
        return self._call("str.find_regex", pattern=pattern, ignore_case=ignore_case)

    def split_regex(self, pattern: str) -> E:
        """Return the parts between the matches of a regular expression (RE2), as a list."""
        return self._call("str.split_regex", pattern=pattern)

    def repeat(self, n: int) -> E:
        """Return the text repeated `n` times."""
        return self._call("str.repeat", n=n)

    def is_alnum(self) -> E:
        """Return whether the text consists of letters and digits."""
        return self._call("str.is_alnum")

    def is_alpha(self) -> E:
        """Return whether the text consists of letters."""
        return self._call("str.is_alpha")

    def is_ascii(self) -> E:
        """Return whether the text is ASCII."""
        return self._call("str.is_ascii")

    def is_decimal(self) -> E:
        """Return whether the text consists of decimal digits."""
        return self._call("str.is_decimal")

    def is_digit(self) -> E:
        """Return whether the text consists of digits."""
        return self._call("str.is_digit")

    def is_lower(self) -> E:
        """Return whether the letters of the text are lower case."""
        return self._call("str.is_lower")

    def is_numeric(self) -> E:
        """Return whether the text consists of numeric characters, which include fractions."""
        return self._call("str.is_numeric")

    def is_printable(self) -> E:
        """Return whether all characters can be printed."""
        return self._call("str.is_printable")

    def is_space(self) -> E:
        """Return whether the text is white space."""
        return self._call("str.is_space")

    def is_title(self) -> E:
        """Return whether each word has its first letter in upper case and the others in lower case."""
        return self._call("str.is_title")

    def is_upper(self) -> E:
        """Return whether the letters of the text are upper case."""
        return self._call("str.is_upper")

    def replace(self, pattern: str, replacement: str, max_replacements: int | None = None) -> E:
        """Return the text with `replacement` in place of `pattern`."""
        how = {"pattern": pattern, "replacement": replacement, "max_replacements": max_replacements}
        return self._call("str.replace", **how)

    def replace_regex(self, pattern: str, replacement: str, max_replacements: int | None = None) -> E:
        """Return the text with `replacement` in place of the matches of a regular expression (RE2)."""
        how = {"pattern": pattern, "replacement": replacement, "max_replacements": max_replacements}
        return self._call("str.replace_regex", **how)

    def slice(self, start: int, stop: int | None = None, step: int = 1) -> E:
        """Return the characters from `start` to `stop`."""
        return self._call("str.slice", start=start, stop=stop, step=step)

    def split(self, pattern: str) -> E:
        """Return the parts between occurrences of `pattern`, as a list."""
        return self._call("str.split", pattern=pattern)

    def split_whitespace(self) -> E:
        """Return the words of the text, as a list."""
        return self._call("str.split_whitespace")

    def lpad(self, width: int, padding: str = " ") -> E:
        """Return the text padded to a width at the start."""
        return self._call("str.lpad", width=width, padding=padding)

    def rpad(self, width: int, padding: str = " ") -> E:
        """Return the text padded to a width at the end."""
        return self._call("str.rpad", width=width, padding=padding)

    def center(self, width: int, padding: str = " ") -> E:
        """Return the text padded to a width at both ends."""
        return self._call("str.center", width=width, padding=padding)


@final
class Lists(_Space[E]):
    """The methods of columns of lists."""

    def len(self) -> E:
        """Return the number of values."""
        return self._call("list.len")

    def get(self, index: int) -> E:
        """Return the value at an index."""
        return self._call("list.get", index=index)

    def __getitem__(self, which: int | builtins.slice) -> E:
        """Return the value at an index, or a slice of the values: ``col("words").list[0]``,
        ``col("words").list[0:2]``."""
        if isinstance(which, builtins.slice):
            step = 1 if which.step is None else which.step
            return self.slice(0 if which.start is None else which.start, which.stop, step)
        if isinstance(which, bool) or not isinstance(which, int):
            raise TypeError(
                f"A list is indexed by a whole number or a slice, but received {which!r:.80}. Write .list[0] or "
                ".list[0:2]."
            )
        return self.get(which)

    def slice(self, start: int = 0, stop: int | None = None, step: int = 1) -> E:
        """Return the values from `start` to `stop`, as a list."""
        return self._call("list.slice", start=start, stop=stop, step=step)

    def sort(self, order: str = "ascending", null_placement: str = "at_end") -> E:
        """Return the values in order.

        Args:
            order: ``"ascending"`` or ``"descending"``.
            null_placement: The place of missing values: ``"at_end"`` or ``"at_start"``.

        Raises:
            ValueError: The order or the place is unknown.
        """
        given, known = (order, null_placement), (("ascending", "descending"), ("at_end", "at_start"))
        if given[0] not in known[0] or given[1] not in known[1]:
            raise ValueError(
                f"sort() takes an order from {known[0]}, and a place for missing values from {known[1]}, but received "
                f"{given}."
            )
        return self._call("list.sort", reverse=order == "descending", nulls_first=null_placement == "at_start")


@final
class Times(_Space[E]):
    """The methods of columns of times."""

    def year(self) -> E:
        """Return the year."""
        return self._call("dt.year")

    def month(self) -> E:
        """Return the month, from 1."""
        return self._call("dt.month")

    def day(self) -> E:
        """Return the day of the month, from 1."""
        return self._call("dt.day")

    def hour(self) -> E:
        """Return the hour."""
        return self._call("dt.hour")

    def minute(self) -> E:
        """Return the minute."""
        return self._call("dt.minute")

    def second(self) -> E:
        """Return the second."""
        return self._call("dt.second")

    def strftime(self, fmt: str) -> E:
        """Return the time as a text."""
        return self._call("dt.strftime", fmt=fmt)

    def floor(self, unit: str) -> E:
        """Round the time down to a unit, such as ``"day"``."""
        return self._call("dt.floor", unit=unit)

    def ceil(self, unit: str) -> E:
        """Round the time up to a unit."""
        return self._call("dt.ceil", unit=unit)

    def round(self, unit: str) -> E:
        """Round the time to the nearest start of a unit."""
        return self._call("dt.round", unit=unit)


@final
class Structs(_Space[E]):
    """The methods of columns of dicts."""

    def __getitem__(self, field_name: str) -> E:
        """Return the value of a key: ``col("point").struct["x"]``."""
        given: object = field_name
        if not isinstance(given, str):
            raise TypeError(f"A dict's values are selected by name, but received {given!r:.80}. Write .struct['x'].")
        return self.field(field_name)

    def field(self, field_name: str) -> E:
        """Return the value of a key."""
        return self._call("struct.field", field_name=field_name)
