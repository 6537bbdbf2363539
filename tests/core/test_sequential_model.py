"""Random programs, compared with what plain recursion gives.

A program is a row of steps: tasks on earlier results, calls on actors, generators, puts, tasks that submit tasks, tasks
that raise. While it is handed in, a model computes each result one after the other; then everything is fetched in
another order. Some references are dropped on the way, and some workers killed: their tasks are tried again, and are
pure.

``HOCKET_TEST_PROGRAMS=1000 pytest tests/core/test_sequential_model.py`` runs more; ``HOCKET_TEST_SEED=17`` runs one
again.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import hocket
from hocket.exceptions import TaskError

PROGRAMS = int(os.environ.get("HOCKET_TEST_PROGRAMS", "25"))
SEED = os.environ.get("HOCKET_TEST_SEED")
SECONDS = 50
"""A wait that does not end is a failure."""


@hocket.remote
def add(first: int, second: int) -> int:
    return first + second


@hocket.remote
def add_inside(refs: list[Any]) -> int:
    return sum(hocket.get(refs))


@hocket.remote(num_returns=2)
def split(value: int) -> tuple[int, int]:
    return value // 2, value - value // 2


@hocket.remote
def count_up(value: int) -> Iterator[int]:
    for number in range(value % 4):
        yield value + number


@hocket.remote
def fold(value: int, depth: int) -> int:
    return value if depth == 0 else 1 + hocket.get(fold.remote(value, depth - 1))


@hocket.remote
def fail(value: int) -> int:
    raise ValueError(f"no {value}")


@hocket.remote
def wrap(value: int) -> list[Any]:
    return [hocket.put(value)]


@hocket.remote
def get_pid() -> int:
    return os.getpid()


@hocket.remote(num_cpus=0)
class Account:
    def __init__(self) -> None:
        self.total = 0

    def pay(self, amount: int) -> int:
        self.total += amount
        return self.total


class Failed:
    """What the model has for a task that raises, or depends on one that does: on several, each of their errors may
    be the first."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts


def join(*results: Any) -> Failed | None:
    """Return the failure of what depends on these, if one of them has failed."""
    texts = [text for result in results if isinstance(result, Failed) for text in result.texts]
    return Failed(*texts) if texts else None


Result = int | Failed


class Program:
    """References, and what the model says of each."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.known: list[tuple[Any, Result]] = [(hocket.put(number), number) for number in range(3)]
        self.accounts = [Account.remote() for _ in range(2)]  # type: ignore[attr-defined]
        self.totals = [0, 0]
        self.kills = 0

    def pick(self) -> tuple[Any, Result]:
        return self.chance.choice(self.known)

    def note(self, ref: Any, result: Result) -> None:
        self.known.append((ref, result))

    def step(self) -> None:
        steps: list[Callable[[], None]] = [
            *(self.add, self.add, self.add_inside, self.split, self.count_up, self.fold),
            *(self.fail, self.wrap, self.pay, self.pay, self.pay, self.put, self.drop, self.kill),
        ]
        self.chance.choice(steps)()

    def add(self) -> None:
        (first, one), (second, other) = self.pick(), self.pick()
        self.note(add.remote(first, second), join(one, other) or one + other)  # type: ignore[operator]

    def add_inside(self) -> None:
        chosen = [self.pick() for _ in range(self.chance.randrange(5))]
        total = join(*(result for _, result in chosen)) or sum(
            result for _, result in chosen if not isinstance(result, Failed)
        )
        self.note(add_inside.remote([ref for ref, _ in chosen]), total)

    def split(self) -> None:
        ref, result = self.pick()
        first, second = split.remote(ref)
        is_failed = isinstance(result, Failed)
        self.note(first, result if is_failed else result // 2)  # type: ignore[operator]
        self.note(second, result if is_failed else result - result // 2)  # type: ignore[operator]

    def count_up(self) -> None:
        ref, result = self.pick()
        if not isinstance(result, Failed):
            items = list(count_up.remote(ref))
            assert len(items) == result % 4
            for number, item in enumerate(items):
                self.note(item, result + number)

    def fold(self) -> None:
        ref, result = self.pick()
        depth = self.chance.randrange(4)
        self.note(fold.remote(ref, depth), result if isinstance(result, Failed) else result + depth)

    def fail(self) -> None:
        ref, result = self.pick()
        self.note(fail.remote(ref), result if isinstance(result, Failed) else Failed(f"no {result}"))

    def wrap(self) -> None:
        ref, result = self.pick()
        if not isinstance(result, Failed):
            self.note(hocket.get(wrap.remote(ref), timeout=SECONDS)[0], result)

    def pay(self) -> None:
        """Calls of one caller run in the order in which they were made; one whose argument fails does not run."""
        ref, result = self.pick()
        which = self.chance.randrange(2)
        if isinstance(result, Failed):
            self.note(self.accounts[which].pay.remote(ref), result)
        else:
            self.totals[which] += result
            self.note(self.accounts[which].pay.remote(ref), self.totals[which])

    def put(self) -> None:
        value = self.chance.randrange(-1000, 1000)
        self.note(hocket.put(value), value)

    def drop(self) -> None:
        if len(self.known) > 3:
            self.known.pop(self.chance.randrange(len(self.known)))

    def kill(self) -> None:
        if self.chance.random() < 0.2:
            pid = hocket.get(get_pid.remote(), timeout=SECONDS)
            if pid != os.getpid() and not self.owns_values():
                os.kill(pid, signal.SIGKILL)
                self.kills += 1

    def owns_values(self) -> bool:
        """On Ray a worker's puts die with it."""
        return hocket.core.session.get_engine().name == "ray"

    def check(self) -> None:
        self.chance.shuffle(self.known)
        for ref, expected in self.known:
            if isinstance(expected, Failed):
                with pytest.raises(TaskError) as caught:
                    hocket.get(ref, timeout=SECONDS)
                assert any(text in str(caught.value) for text in expected.texts)
            else:
                assert hocket.get(ref, timeout=SECONDS) == expected


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_random_programs_give_what_the_model_says(session: hocket.SessionContext) -> None:
    first = int(SEED) if SEED else random.randrange(10**6)
    kills = 0
    for seed in range(first, first + (1 if SEED else PROGRAMS)):
        print("seed", seed)
        program = Program(seed)
        for _ in range(program.chance.randrange(5, 40)):
            program.step()
        program.check()
        kills += program.kills
    print("kills", kills)
