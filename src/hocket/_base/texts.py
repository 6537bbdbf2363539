"""Text of users' objects: exceptions, values, and names that go to a terminal.

*Problem.* An exception is a user's object. Its ``__str__``, ``__repr__``, ``__getattribute__``, ``__class__`` and
``args`` may raise, and its text may be a gigabyte. If the description of an error fails, too, a worker dies without a
message, or the caller waits for ever.

*How.* The functions here neither raise nor trust an exception's class. They read an exception's attributes through the
descriptors of `BaseException`, cut texts, and walk each chain once. They catch `BaseException` on purpose: a
``__str__`` may also raise SystemExit.

*Limit.* A ``__str__`` that never returns holds up its own task, as any other such function of the user's does.
"""

from __future__ import annotations

import contextlib
import linecache
import math
import os
import re
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, TypeVar

E = TypeVar("E", bound=BaseException)

MOST_NAME: Final = 200
"""The most characters of a name in a line."""

MOST_CHARACTERS: Final = 20_000
"""The most characters in the text of one exception. A guess: far more than users read, and little enough to send."""

MOST_LINKS: Final = 10
"""The most exceptions of a chain that are described, half of them from each end. A guess."""

_WHOLE_LIMIT: Final = 1e15
"""From here on, the last digits of floats are no longer exact."""

_CHAIN_FOR_HINTS: Final = 100
"""The longest chain whose exceptions the standard library describes, with hints such as "Did you mean". It walks the
whole chain for each exception, which is too slow for longer ones."""

_FRAME: Final = re.compile(r'(?P<indent> *)File "(?P<file>[^"]+)", line (?P<line>\d{1,9}), in ')
"""The first line of a frame in a traceback."""

_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"

_PACKAGE: Final = __file__.rsplit(os.sep, 2)[0] + os.sep
_NOT_OURS: Final = (f"{_PACKAGE}testing{os.sep}", f"{_PACKAGE}cli{os.sep}demo{os.sep}")
"""Folders of this package that count as user code."""

_carriers = [contextlib.contextmanager.__code__.co_filename]
"""Prefixes of files whose frames are hidden if our code called them. The first is contextlib: its frames stand between
a ``with`` of ours and the function that it enters."""

_PICKLER: Final = f"{os.sep}cloudpickle{os.sep}"

SHOWS_ALL: Final = os.environ.get("HOCKET_FULL_TRACEBACKS", "0") == "1"
"""Whether tracebacks keep the frames of this package. Default: no, because users cannot change that code."""

_OUR_MISTAKES: Final = (AssertionError, LookupError, NameError)
"""Errors that our code raises by mistake only, unless `mark_told` has marked them. Their frames are the evidence."""

_TOLD: Final = "_hocket_is_told"


# --- one value --------------------------------------------------------------------------------------------------------


def safe_text(value: object, most: int = MOST_CHARACTERS) -> str:
    """Return ``str(value)``, cut to `most` characters; if that raises, a text that says so."""
    return _convert(value, str, "__str__", most)


def safe_repr(value: object, most: int = 1_000) -> str:
    """Return ``repr(value)``, cut to `most` characters; if that raises, a text that says so."""
    return _convert(value, repr, "__repr__", most)


def _convert(value: object, function: Callable[[object], str], name: str, most: int) -> str:
    try:
        return shorten(str.__str__(function(value)), most)
    except BaseException as error:  # a user's method may raise anything
        return f"<{name_class(type(value))} without a text: its {name} raised {name_class(type(error))}>"


def name_class(kind: type) -> str:
    """Return the name of a class, even if its metaclass hides or overrides the name."""
    try:
        return str.__str__(vars(type)["__name__"].__get__(kind))
    except BaseException:  # a user's metaclass may raise anything
        return "a class without a name"


def name_kind(value: object) -> str:
    """Return the name of a value's class with its article: "an int", "a DataFrame"."""
    name = name_class(type(value))
    return f"{'an' if name[:1] in 'aeioAEIO' or name == 'ndarray' else 'a'} {name}"


def show_name(name: str) -> str:
    r"""Return a foreign name, made fit for a line of text: short, and harmless to a terminal.

    Example:
        >>> from hocket._base import texts
        >>> texts.show_name("a\nb")
        'a\\nb'
    """
    return escape(cut(name, MOST_NAME), one_line=True)


def shorten(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return a text without its middle if it is longer than `most` characters."""
    if len(text) <= most:
        return text
    head = most // 4
    return f"{text[:head]}\n... ({len(text) - most:,} characters left out) ...\n{text[head - most :]}"


def add_sources(text: str) -> str:
    """Return a worker's traceback, with the source lines that only this process can read: code of a notebook's cells,
    and code typed at a prompt."""
    lines = text.split("\n")
    out: list[str] = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        out.append(line)
        frame = _FRAME.match(line)
        if frame is None or following.startswith(f"{frame['indent']}  "):
            continue
        source = linecache.getline(frame["file"], int(frame["line"])).strip()
        if source:
            out.append(f"{frame['indent']}  {source}")
    return "\n".join(out)


def format_bytes(count: float) -> str:
    """Return a number of bytes, in the unit that suits its size.

    Example:
        >>> format_bytes(3 * 2**20)
        '3.0 MiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def show_figure(value: float) -> str:
    """Return the text of a number that a program has reported.

    Whole numbers have no point. Others have six significant digits, or three decimals from a million on.

    Example:
        >>> from hocket._base import texts
        >>> [texts.show_figure(value) for value in (1234567.0, 1234567.0094, 0.000123456789, float("nan"))]
        ['1234567', '1234567.009', '0.000123457', 'nan']
    """
    if not math.isfinite(value) or value != int(value) or abs(value) >= _WHOLE_LIMIT:
        is_long = 1e6 <= abs(value) < _WHOLE_LIMIT
        return f"{value:.3f}".rstrip("0").rstrip(".") if is_long else f"{value:.6g}"
    return str(int(value))


def cut(text: str, most: int) -> str:
    """Return a text that fits a table's cell: without its end if it is longer than `most` characters.

    Example:
        >>> cut("a long name", 8)
        'a lon...'
    """
    return text if len(text) <= most else f"{text[: most - 3]}..."


# --- exceptions -------------------------------------------------------------------------------------------------------


def describe(error: BaseException, most: int = MOST_CHARACTERS) -> str:
    """Return the class and the text of an exception: ``ValueError: too long``."""
    text = safe_text(error, most)
    name = name_class(type(error))
    return f"{name}: {text}" if text else name


def format_error(error: BaseException) -> str:
    """Return the traceback of an exception and of its causes, as Python prints it, but only with the user's frames.

    From a long chain it leaves out the middle, and says how many exceptions it left out.
    """
    try:
        return _format_chain(_list_chain(error))
    except BaseException:  # the description of an error must not fail
        return f"{describe(error)}\n"


def mark_told(error: E) -> E:
    """Mark an error of a class in `_OUR_MISTAKES` that our code raises on purpose: its text says enough.

    Example:
        >>> from hocket._base import texts
        >>> texts.is_told(texts.mark_told(KeyError("There is no column 'x'.")))
        True
    """
    vars(error)[_TOLD] = True
    return error


def is_told(error: BaseException) -> bool:
    """Return whether `mark_told` has marked an error."""
    try:
        return _TOLD in object.__getattribute__(error, "__dict__")
    except BaseException:  # a user's error may have no `__dict__`
        return False


def _read(error: BaseException, name: str) -> Any:
    """Return an attribute that every exception has, even if the exception's class overrides it."""
    return vars(BaseException)[name].__get__(error)


def _list_chain(error: BaseException) -> list[tuple[BaseException, str]]:
    """Return an exception and its causes, each with the line that Python prints between it and the next."""
    chain: list[tuple[BaseException, str]] = []
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        cause = _read(following, "__cause__")
        hides = _read(following, "__suppress_context__")
        chain.append((following, "" if cause is None and hides else _CONTEXT if cause is None else _CAUSE))
        following = cause if cause is not None or hides else _read(following, "__context__")
    return chain


def _format_chain(chain: list[tuple[BaseException, str]]) -> str:
    half = MOST_LINKS // 2
    left_out = len(chain) - MOST_LINKS
    has_hints = len(chain) <= _CHAIN_FOR_HINTS
    parts: list[str] = []
    for position in range(len(chain) - 1, -1, -1):
        if left_out > 0 and half <= position < len(chain) - half:
            if position == half:
                parts.append(f"\n... ({left_out:,} exceptions of this chain left out) ...\n\n")
            continue
        error, link = chain[position]
        if position + 1 < len(chain) and not (left_out > 0 and position == half - 1):
            parts.append(link)
        parts.append(shorten(_format_one(error, has_hints)))
    return "".join(parts)


def _format_one(error: BaseException, has_hints: bool) -> str:
    if issubclass(type(error), BaseExceptionGroup):
        described = traceback.TracebackException(type(error), error, _read(error, "__traceback__"))
        _drop_ours(described)
        return "".join(described.format(chain=False))
    frames = _format_frames(error)
    head = "Traceback (most recent call last):\n" if frames else ""
    return f"{head}{frames}{_format_last_lines(error, has_hints)}"


def _format_frames(error: BaseException) -> str:
    trace: TracebackType | None = _read(error, "__traceback__")
    frames = _choose_frames(traceback.extract_tb(trace), None if is_told(error) else type(error))
    return "".join(traceback.StackSummary.from_list(frames).format())


def _choose_frames(frames: list[traceback.FrameSummary], kind: type | None) -> list[traceback.FrameSummary]:
    """Return the user's frames; for a mistake of ours, also our frames after the user's last one."""
    if SHOWS_ALL:
        return frames
    is_our_mistake = kind is not None and issubclass(kind, _OUR_MISTAKES)
    ours = _mark_ours([frame.filename for frame in frames])
    last = max((at for at, is_our in enumerate(ours) if not is_our), default=-1)
    return [frame for at, frame in enumerate(frames) if not ours[at] or (is_our_mistake and at > last)]


def _mark_ours(filenames: list[str]) -> list[bool]:
    """Return whether each frame is ours: in a file of ours, or in a file of `_carriers` and called by our code."""
    marks: list[bool] = []
    carriers = tuple(_carriers)
    for filename in filenames:
        is_carried = filename.startswith(carriers) and (not marks or marks[-1])
        marks.append(is_carried or _is_ours(filename))
    return marks


def add_carriers(*prefixes: str) -> None:
    """Hide frames of files with these prefixes if our code called them: for example, an engine's library."""
    _carriers.extend(prefix for prefix in prefixes if prefix not in _carriers)


def _drop_ours(described: traceback.TracebackException) -> None:
    """Keep only the user's frames in the traceback of a group and of its exceptions."""
    left: list[traceback.TracebackException | None] = [described]
    while left:
        one = left.pop()
        if one is not None:
            one.stack = traceback.StackSummary.from_list(_choose_frames(one.stack, one.exc_type))
            left += [*(one.exceptions or ()), one.__cause__, one.__context__]


def _is_ours(filename: str) -> bool:
    return filename.startswith(_PACKAGE) and not filename.startswith(_NOT_OURS)


def _format_last_lines(error: BaseException, has_hints: bool) -> str:
    """Return the last lines of a traceback: the class, the text, the notes."""
    try:
        str(error)  # if this raises, the standard library's text would not say which error
        if has_hints:
            return "".join(traceback.format_exception_only(type(error), error))
    except BaseException:  # noqa: S110 (the same)
        pass
    return f"{describe(error)}\n"


def drop_own_frames(error: BaseException) -> None:
    """Remove from an exception our frames and the pickler's before the user's first frame; all, if there is no user's
    frame."""
    trace: TracebackType | None = _read(error, "__traceback__")
    while trace is not None and not SHOWS_ALL:
        filename = trace.tb_frame.f_code.co_filename
        if not (_is_ours(filename) or _PICKLER in filename or filename.startswith(tuple(_carriers))):
            break
        trace = trace.tb_next
    BaseException.with_traceback(error, trace)


def passed_user(error: BaseException) -> bool:
    """Return whether an exception came through a frame of the user's code."""
    return not all(_mark_ours([_find_filename(trace) for trace in _list_frames(error)]))


def is_raised_by_us(error: BaseException) -> bool:
    """Return whether a ``raise`` statement of our code raised an exception, which then explains itself."""
    import opcode  # here, because a program without a mistake never needs it

    frames = _list_frames(error)
    if isinstance(error, AssertionError) or not frames or not _is_ours(_find_filename(frames[-1])):
        return False
    return frames[-1].tb_frame.f_code.co_code[frames[-1].tb_lasti] == opcode.opmap["RAISE_VARARGS"]


def _list_frames(error: BaseException) -> list[TracebackType]:
    frames: list[TracebackType] = []
    trace: TracebackType | None = _read(error, "__traceback__")
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    return frames


def _find_filename(trace: TracebackType) -> str:
    """Return the file of a frame; for methods that a dataclass generates, the file of the dataclass."""
    filename = trace.tb_frame.f_code.co_filename
    return trace.tb_frame.f_globals.get("__file__") or filename if filename == "<string>" else filename


# --- terminals --------------------------------------------------------------------------------------------------------

_CONTROLS = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_ESCAPES_ALL: Final = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _CONTROLS} | {
    0x09: "\\t",
    0x0A: "\\n",
    0x0D: "\\r",
}
_ESCAPES: Final = {code: text for code, text in _ESCAPES_ALL.items() if code not in (0x09, 0x0A)}


def escape(text: str, *, one_line: bool = False) -> str:
    r"""Return a text that is harmless to a terminal, and that every file can store.

    Control characters, marks of the writing direction, and lone surrogates are written like ``\x1b``.

    Args:
        text: A foreign name or message.
        one_line: Whether line breaks and tabs are escaped too.

    Example:
        >>> from hocket._base import texts
        >>> print(texts.escape("\x1b[31mred"))
        \x1b[31mred
    """
    return text.translate(_ESCAPES_ALL if one_line else _ESCAPES).encode("utf-8", "backslashreplace").decode()
