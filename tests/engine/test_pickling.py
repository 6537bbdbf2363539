"""What the pickler adds to cloudpickle."""

from __future__ import annotations

import io
import pickle
import sys
import threading
import types
from typing import Any, Self

import pytest

from hocket import exceptions
from hocket.engine import pickling, values


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


class OwnModule(types.ModuleType):
    """A module of a class of its own, as ``torch.ops`` is."""


def test_modules_of_own_classes_are_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """cloudpickle takes ``torch.ops`` for used where a function has the names ``torch`` and ``ops``."""
    parent, child = types.ModuleType("hocket_parent"), OwnModule("hocket_parent.ops")
    monkeypatch.setitem(sys.modules, "hocket_parent", parent)
    monkeypatch.setitem(sys.modules, "hocket_parent.ops", child)
    monkeypatch.setattr(parent, "ops", child, raising=False)
    names: dict[str, Any] = {"__name__": "__main__", "parent": parent}
    exec("def use(keras):\n    return parent, keras.ops", names)
    stream = io.BytesIO()
    pickling.load_pickler()(stream, pickling.PROTOCOL).dump([names["use"], child])
    _, found = pickle.loads(stream.getvalue())
    assert found is child
    stranger = OwnModule("hocket_stranger")
    stranger.lock = threading.Lock()  # type: ignore[attr-defined]  # what no pickler takes
    with pytest.raises(TypeError, match="cannot pickle"):
        pickling.load_pickler()(io.BytesIO(), pickling.PROTOCOL).dump(stranger)


class OddError(Exception):
    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{code}: {why}")
        self.code = code


class OddFileError(OSError):
    def __init__(self, path: str, *, size: int) -> None:
        super().__init__(2, "too small", path)
        self.size = size


class DoubledError(Exception):
    def __init__(self, code: object, why: str = "no") -> None:
        super().__init__(f"{code}: {why}")


class FixedError(Exception):
    def __new__(cls, code: int, why: str) -> Self:
        return super().__new__(cls, code, why)

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{code}: {why}")


def send(error: BaseException) -> exceptions.TaskError:
    """Return the error as it arrives, twice on its way."""
    arrived = values.decode(values.encode_error(exceptions.TaskError("f", "", error)))
    return values.decode(values.encode(arrived.as_instanceof_cause()).data)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "error",
    [OddError(3, "late"), OddFileError("a.txt", size=3), DoubledError(3), ExceptionGroup("two", [OddError(1, "x")])],
    ids=lambda error: type(error).__name__,
)
def test_exceptions_arrive_that_their_constructors_cannot_rebuild(error: Exception) -> None:
    arrived = send(error)
    cause = arrived.cause
    assert isinstance(arrived, type(error))
    assert (type(cause), str(cause), cause.args[0]) == (type(error), str(error), error.args[0])
    assert {**vars(cause)} == {**vars(error)}
    if isinstance(error, OSError):
        assert isinstance(cause, OSError)
        assert (cause.errno, cause.filename) == (2, "a.txt")
    if isinstance(error, ExceptionGroup):
        assert isinstance(cause, ExceptionGroup)
        assert vars(cause.exceptions[0]) == {"code": 1}


def test_an_exception_that_cannot_be_rebuilt_says_what_to_write() -> None:
    arrived = send(FixedError(3, "late"))
    note = r"FixedError: 3: late \(the exception itself could not be sent: .*missing.*'why'.*Pass all arguments of its"
    with pytest.raises(exceptions.HocketError, match=rf"{note} class to super\(\)\.__init__\(\), or define __reduce__"):
        raise arrived.cause
