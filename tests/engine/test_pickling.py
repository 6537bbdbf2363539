"""What the pickler adds to cloudpickle."""

from __future__ import annotations

import io
import pickle
from typing import Any

from hocket.engine import pickling


def test_code_keeps_the_file_that_it_is_from() -> None:
    """Also with cloudpickle 3.1.3, which leaves the name out: a worker's traceback then shows no line of the source."""
    names: dict[str, Any] = {"__name__": "__main__"}
    source = "def outer(x):\n    def inner(y):\n        return x / y\n    return inner\n"
    exec(compile(source, "/somewhere/script.py", "exec"), names)
    stream = io.BytesIO()
    pickling.load_pickler()(stream, pickling.PROTOCOL).dump(names["outer"])
    outer = pickle.loads(stream.getvalue())
    codes = [outer.__code__, outer(1).__code__]
    assert [code.co_filename for code in codes] == ["/somewhere/script.py"] * 2
    assert [code.co_name for code in codes] == ["outer", "inner"]
    assert outer(6)(3) == 2
