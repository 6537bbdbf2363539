"""Errors of tasks and calls that nobody has fetched are shown once, when the session ends.

asyncio says "Task exception was never retrieved", and Ray "Unhandled error": a program whose calls all fail, and that
never asks for their results, would otherwise end as if all had gone well.
"""

from __future__ import annotations

import collections
import contextlib
import os
import sys
from typing import Final

from hocket import exceptions, texts
from hocket.engine import contract

MOST_SHOWN: Final = 5
"""How many kinds of errors have a line. A guess: more are no longer read."""

_VARIABLE: Final = "HOCKET_UNFETCHED_ERRORS"


def collect(engine: contract.Engine) -> list[tuple[str, BaseException]]:
    """Return what is to be shown at the end of a session, while its engine can still be asked."""
    is_off = os.environ.get(_VARIABLE, "").lower() in ("off", "0")
    return [] if is_off else engine.list_unfetched()


def show(errors: list[tuple[str, BaseException]]) -> None:
    """Write errors to stderr: one block, with a line for each kind of error and the traceback of the first."""
    ends = (KeyboardInterrupt, SystemExit)  # so a program ends a task
    errors = [(name, error) for name, error in errors if not isinstance(exceptions.get_cause(error), ends)]
    if not errors:
        return
    causes = [(name, exceptions.get_cause(error)) for name, error in errors]
    kinds = collections.Counter(
        f"{texts.show_name(name)}: {texts.name_class(type(cause))}: {texts.cut(texts.safe_text(cause), 200)}"
        for name, cause in causes
    )
    many = f"{len(causes)} errors of tasks were" if len(causes) > 1 else "The error of a task was"
    lines = [f"{many} never fetched: hocket.get() on a task's reference raises its error. {_VARIABLE}=off hides this."]
    lines += [f"  {text}" + (f" ({count} times)" if count > 1 else "") for text, count in kinds.most_common(MOST_SHOWN)]
    if len(kinds) > MOST_SHOWN:
        lines.append(f"  and {len(kinds) - MOST_SHOWN} other kinds; hocket.error_info() lists the last 1,000.")
    with contextlib.suppress(AttributeError, OSError, ValueError):  # there may be no stderr, or a closed one
        sys.stderr.write("\n".join([*lines, texts.safe_text(errors[0][1]).rstrip(), ""]))
        sys.stderr.flush()
