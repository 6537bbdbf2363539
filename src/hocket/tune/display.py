"""What is shown of a search while it runs, and when it is over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hocket.tune.run import search as searches


@contextlib.contextmanager
def shown(search: searches.Search) -> Iterator[None]:
    """Show a search in the block."""
    yield
