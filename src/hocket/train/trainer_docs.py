"""Completes the documentation of a framework's trainer by the arguments and errors that all trainers share."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Final

_ENTRY: Final = re.compile(r"    (\w+): ")


def complete(own: str, common: str, names: Sequence[str]) -> str:
    """Return a trainer's docstring with the arguments and errors of the base class that the docstring lacks.

    Args:
        own: The docstring of a framework's trainer. Its section ``Args`` has the trainer's own arguments.
        common: The docstring of `hocket.train.DataParallelTrainer`.
        names: The names of the trainer's arguments, in order.

    Example:
        >>> from hocket.train import trainer_docs
        >>> common = "A.\\n\\nArgs:\\n    backend_config: C.\\n    run_config: R.\\n\\nRaises:\\n    TypeError: T."
        >>> names = ["torch_config", "run_config"]
        >>> print(trainer_docs.complete("B.\\n\\nArgs:\\n    torch_config: T.", common, names))
        B.
        <BLANKLINE>
        Args:
            torch_config: T.
            run_config: R.
        <BLANKLINE>
        Raises:
            TypeError: T.
    """
    paragraphs = inspect.cleandoc(own).split("\n\n")
    shared = {text.partition("\n")[0]: text for text in inspect.cleandoc(common).split("\n\n")}
    place = next(i for i, text in enumerate(paragraphs) if text.startswith("Args:\n"))
    entries = _list_entries(shared["Args:"]) | _list_entries(paragraphs[place])
    paragraphs[place] = "\n".join(["Args:", *(entries[name] for name in names if name in entries)])
    if not any(text.startswith("Raises:\n") for text in paragraphs):
        paragraphs.insert(place + 1, shared["Raises:"])
    return "\n\n".join(paragraphs)


def _list_entries(section: str) -> dict[str, str]:
    """Return the entries of a section by name, with all of their lines."""
    found: dict[str, str] = {}
    name = ""
    for line in section.split("\n")[1:]:
        started = _ENTRY.match(line)
        if started:
            name = started[1]
        found[name] = f"{found[name]}\n{line}" if name in found and not started else line
    return found
