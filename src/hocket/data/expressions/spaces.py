"""Methods of expressions for one kind of values: texts, lists, times, dicts.

Each calls a function of `functions` by its name.
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
        call: Makes the expression of a function's name and its arguments.
    """

    def __init__(self, call: Callable[..., E]) -> None:
        self._call = call


@final
class Texts(_Space[E]):
    """The methods of columns of texts."""

    def len(self) -> E:
        """Return how many letters there are."""
        return self._call("str.len")

    def byte_len(self) -> E:
        """Return how many bytes it has as UTF-8."""
        return self._call("str.byte_len")

    def lower(self) -> E:
        """Return it in small letters."""
        return self._call("str.lower")

    def upper(self) -> E:
        """Return it in large letters."""
        return self._call("str.upper")

    def capitalize(self) -> E:
        """Return it with a large letter first, and small ones then."""
        return self._call("str.capitalize")

    def title(self) -> E:
        """Return it with a large letter first in each word."""
        return self._call("str.title")

    def swapcase(self) -> E:
        """Return small letters large and large ones small."""
        return self._call("str.swapcase")

    def reverse(self) -> E:
        """Return it from the end."""
        return self._call("str.reverse")

    def strip(self, characters: str | None = None) -> E:
        """Return it without spaces, or these characters, at both ends."""
        return self._call("str.strip", characters=characters)

    def lstrip(self, characters: str | None = None) -> E:
        """Return it without spaces, or these characters, at the start."""
        return self._call("str.lstrip", characters=characters)

    def rstrip(self, characters: str | None = None) -> E:
        """Return it without spaces, or these characters, at the end."""
        return self._call("str.rstrip", characters=characters)

    def starts_with(self, pattern: str, ignore_case: bool = False) -> E:
        """Return whether it begins so."""
        return self._call("str.starts_with", pattern=pattern, ignore_case=ignore_case)

    def ends_with(self, pattern: str, ignore_case: bool = False) -> E:
        """Return whether it ends so."""
        return self._call("str.ends_with", pattern=pattern, ignore_case=ignore_case)

    def contains(self, pattern: str, ignore_case: bool = False) -> E:
        """Return whether this text is in it."""
        return self._call("str.contains", pattern=pattern, ignore_case=ignore_case)

    def match_regex(self, pattern: str, ignore_case: bool = False) -> E:
        """Return whether a regular expression (RE2) matches a part of it."""
        return self._call("str.match_regex", pattern=pattern, ignore_case=ignore_case)

    def find(self, pattern: str, ignore_case: bool = False) -> E:
        """Return at which byte this text begins in it; -1 if it is not there."""
        return self._call("str.find", pattern=pattern, ignore_case=ignore_case)

    def count(self, pattern: str, ignore_case: bool = False) -> E:
        """Return how often this text is in it."""
        return self._call("str.count", pattern=pattern, ignore_case=ignore_case)

    def count_regex(self, pattern: str, ignore_case: bool = False) -> E:
        """Return how often a regular expression (RE2) matches a part of it."""
        return self._call("str.count_regex", pattern=pattern, ignore_case=ignore_case)

    def find_regex(self, pattern: str, ignore_case: bool = False) -> E:
        """Return at which byte the first part begins that a regular expression (RE2) matches; -1 if there is none."""
        return self._call("str.find_regex", pattern=pattern, ignore_case=ignore_case)

    def split_regex(self, pattern: str) -> E:
        """Return its parts between what a regular expression (RE2) matches, as a list."""
        return self._call("str.split_regex", pattern=pattern)

    def repeat(self, n: int) -> E:
        """Return it so many times, one behind the other."""
        return self._call("str.repeat", n=n)

    def is_alnum(self) -> E:
        """Return whether it is letters and digits."""
        return self._call("str.is_alnum")

    def is_alpha(self) -> E:
        """Return whether it is letters."""
        return self._call("str.is_alpha")

    def is_ascii(self) -> E:
        """Return whether it is ASCII."""
        return self._call("str.is_ascii")

    def is_decimal(self) -> E:
        """Return whether it is digits of a decimal number."""
        return self._call("str.is_decimal")

    def is_digit(self) -> E:
        """Return whether it is digits."""
        return self._call("str.is_digit")

    def is_lower(self) -> E:
        """Return whether its letters are small."""
        return self._call("str.is_lower")

    def is_numeric(self) -> E:
        """Return whether it is numbers, fractions among them."""
        return self._call("str.is_numeric")

    def is_printable(self) -> E:
        """Return whether all of it can be printed."""
        return self._call("str.is_printable")

    def is_space(self) -> E:
        """Return whether it is white space."""
        return self._call("str.is_space")

    def is_title(self) -> E:
        """Return whether each word begins with a large letter, and goes on in small ones."""
        return self._call("str.is_title")

    def is_upper(self) -> E:
        """Return whether its letters are large."""
        return self._call("str.is_upper")

    def replace(self, pattern: str, replacement: str, max_replacements: int | None = None) -> E:
        """Return it with another text in the place of this one."""
        how = {"pattern": pattern, "replacement": replacement, "max_replacements": max_replacements}
        return self._call("str.replace", **how)

    def replace_regex(self, pattern: str, replacement: str, max_replacements: int | None = None) -> E:
        """Return it with a text in the place of what a regular expression (RE2) matches."""
        how = {"pattern": pattern, "replacement": replacement, "max_replacements": max_replacements}
        return self._call("str.replace_regex", **how)

    def slice(self, start: int, stop: int | None = None, step: int = 1) -> E:
        """Return some letters of it."""
        return self._call("str.slice", start=start, stop=stop, step=step)

    def split(self, pattern: str) -> E:
        """Return its parts between this text, as a list."""
        return self._call("str.split", pattern=pattern)

    def split_whitespace(self) -> E:
        """Return its words, as a list."""
        return self._call("str.split_whitespace")

    def lpad(self, width: int, padding: str = " ") -> E:
        """Return it so long, with padding at the start."""
        return self._call("str.lpad", width=width, padding=padding)

    def rpad(self, width: int, padding: str = " ") -> E:
        """Return it so long, with padding at the end."""
        return self._call("str.rpad", width=width, padding=padding)

    def center(self, width: int, padding: str = " ") -> E:
        """Return it so long, with padding at both ends."""
        return self._call("str.center", width=width, padding=padding)


@final
class Lists(_Space[E]):
    """The methods of columns of lists."""

    def len(self) -> E:
        """Return how many values there are."""
        return self._call("list.len")

    def get(self, index: int) -> E:
        """Return one of the values."""
        return self._call("list.get", index=index)

    def __getitem__(self, which: int | builtins.slice) -> E:
        """Return one of the values, or some of them: ``col("words").list[0]``, ``col("words").list[0:2]``."""
        if isinstance(which, builtins.slice):
            step = 1 if which.step is None else which.step
            return self.slice(0 if which.start is None else which.start, which.stop, step)
        if isinstance(which, bool) or not isinstance(which, int):
            raise TypeError(f"A list has values by number, but received {which!r:.80}. Write .list[0] or .list[0:2].")
        return self.get(which)

    def slice(self, start: int = 0, stop: int | None = None, step: int = 1) -> E:
        """Return some of the values."""
        return self._call("list.slice", start=start, stop=stop, step=step)

    def sort(self, order: str = "ascending", null_placement: str = "at_end") -> E:
        """Return the values in order.

        Args:
            order: ``"ascending"`` or ``"descending"``.
            null_placement: Where missing ones are: ``"at_end"`` or ``"at_start"``.

        Raises:
            ValueError: There is no such order, or place.
        """
        given, known = (order, null_placement), (("ascending", "descending"), ("at_end", "at_start"))
        if given[0] not in known[0] or given[1] not in known[1]:
            raise ValueError(
                f"sort() takes an order, {known[0]}, and a place of missing values, {known[1]}, but received {given}."
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
        """Return it as a text."""
        return self._call("dt.strftime", fmt=fmt)

    def floor(self, unit: str) -> E:
        """Return the start of the unit, such as ``"day"``, in which it lies."""
        return self._call("dt.floor", unit=unit)

    def ceil(self, unit: str) -> E:
        """Return the end of the unit in which it lies."""
        return self._call("dt.ceil", unit=unit)

    def round(self, unit: str) -> E:
        """Return the start or the end of the unit in which it lies, whichever is nearer."""
        return self._call("dt.round", unit=unit)


@final
class Structs(_Space[E]):
    """The methods of columns of dicts."""

    def __getitem__(self, field_name: str) -> E:
        """Return the value of a key: ``col("point").struct["x"]``."""
        given: object = field_name
        if not isinstance(given, str):
            raise TypeError(f"A dict has values by name, but received {given!r:.80}. Write .struct['x'].")
        return self.field(field_name)

    def field(self, field_name: str) -> E:
        """Return the value of a key."""
        return self._call("struct.field", field_name=field_name)
