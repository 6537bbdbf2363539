"""The contract of every engine on tasks."""

from __future__ import annotations

from typing import Any

import pytest

from hocket import exceptions
from hocket.core import api
from hocket.engine import contract
from hocket.testing.suites import programs


class TaskContract:
    """The tasks of every engine, and their exceptions. Part of `EngineContract`."""

    def test_task_returns_its_value(self) -> None:
        square = api.remote(programs.square)
        assert api.get(square.remote(7)) == 49

    def test_many_tasks_keep_their_order_in_get(self) -> None:
        square = api.remote(programs.square)
        assert api.get([square.remote(x) for x in range(500)]) == [x * x for x in range(500)]

    def test_top_level_references_are_resolved_by_position_and_by_keyword(self) -> None:
        @api.remote
        def join(first: str, second: str) -> str:
            return first + second

        assert api.get(join.remote(api.put("a"), second=api.put("b"))) == "ab"

    def test_nested_references_stay_references(self) -> None:
        @api.remote
        def open_box(box: list[contract.ObjectRef[int]]) -> int:
            return api.get(box[0]) + 1

        assert api.get(open_box.remote([api.put(41)])) == 42

    def test_several_returns(self) -> None:
        @api.remote(num_returns=3)
        def three() -> tuple[int, int, int]:
            return 1, 2, 3

        assert api.get(three.remote()) == [1, 2, 3]

    def test_no_returns(self) -> None:
        @api.remote(num_returns=0)
        def nothing() -> None:
            return None

        assert nothing.remote() is None

    def test_wrong_number_of_returns_is_an_error(self) -> None:
        @api.remote(num_returns=2)
        def three() -> tuple[int, int, int]:
            return 1, 2, 3

        with pytest.raises(ValueError, match=r"num_returns=2 but returned 3 values"):
            api.get(three.remote()[0])

    def test_tasks_nest_deeper_than_there_are_cpus(self) -> None:
        @api.remote
        def depth(left: int) -> int:
            return 0 if left == 0 else 1 + int(api.get(depth.remote(left - 1)))

        assert api.get(depth.remote(10)) == 10

    def test_closure_may_hold_a_reference(self) -> None:
        ref = api.put(5)

        @api.remote
        def read() -> int:
            return int(api.get(ref))

        assert api.get(read.remote()) == 5

    def test_result_may_hold_references(self) -> None:
        @api.remote
        def wrap() -> list[Any]:
            return [api.put(1), api.put(2)]

        assert api.get(api.get(wrap.remote())) == [1, 2]

    def test_error_is_of_both_classes_and_has_the_remote_traceback(self) -> None:
        @api.remote
        def fail() -> None:
            raise ValueError("deliberate")

        with pytest.raises(ValueError, match="deliberate") as caught:
            api.get(fail.remote())
        assert isinstance(caught.value, exceptions.TaskError)
        assert isinstance(caught.value.cause, ValueError)
        assert "in fail" in str(caught.value)

    def test_failed_dependency_fails_its_dependants_with_the_cause_and_without_running_them(self) -> None:
        @api.remote
        def fail() -> None:
            raise LookupError("first")

        @api.remote
        def use(value: object, log: Any) -> None:
            api.get(log.add.remote())

        log = api.remote(programs.Counter).remote()
        with pytest.raises(LookupError, match="first"):
            api.get(use.remote(use.remote(fail.remote(), log), log))
        assert api.get(log.add.remote(0)) == 0

    def test_retry_exceptions_tries_again(self) -> None:
        counter = api.remote(programs.Counter).remote()

        @api.remote(max_retries=5, retry_exceptions=[OSError])
        def flaky(counter: Any) -> int:
            count = int(api.get(counter.add.remote()))
            if count < 3:
                raise OSError(count)
            return count

        assert api.get(flaky.remote(counter)) == 3

    def test_exceptions_that_are_not_named_are_not_tried_again(self) -> None:
        counter = api.remote(programs.Counter).remote()

        @api.remote(max_retries=5, retry_exceptions=[OSError])
        def fail(counter: Any) -> None:
            api.get(counter.add.remote())
            raise KeyError("no")

        with pytest.raises(KeyError, match="no"):
            api.get(fail.remote(counter))
        assert api.get(counter.add.remote(0)) == 1

    def test_exceptions_with_a_constructor_of_their_own_are_caught_and_tried_again(self) -> None:
        class CodeError(Exception):
            def __init__(self, code: int, why: str) -> None:
                super().__init__(f"{code}: {why}")
                self.code = code

        counter = api.remote(programs.Counter).remote()

        @api.remote(max_retries=5, retry_exceptions=[CodeError])
        def flaky(counter: Any, tries: int) -> int:
            count = int(api.get(counter.add.remote()))
            if count < tries:
                raise CodeError(count, "not yet")
            return count

        assert api.get(flaky.remote(counter, 3)) == 3
        with pytest.raises(CodeError, match="9: not yet") as caught:
            api.get(flaky.remote(counter, 100))
        cause: Any = caught.value.cause  # type: ignore[attr-defined]
        assert (type(cause), cause.code, str(cause)) == (CodeError, 9, "9: not yet")
        with pytest.raises(CodeError, match="9: not yet"):  # the error can be sent once more
            raise api.get(api.put(caught.value))

    def test_error_info_lists_failures(self) -> None:
        @api.remote
        def fail() -> None:
            raise ValueError("listed")

        with pytest.raises(ValueError, match="listed"):
            api.get(fail.remote())
        assert [(record.name, record.error_type, record.message) for record in api.error_info()] == [
            ("fail", "ValueError", "listed")
        ]
