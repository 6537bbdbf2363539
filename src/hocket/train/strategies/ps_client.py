"""Parameters on servers, as the driver and the ranks of a run see them: the part that all adapters share.

**The driver** hosts the servers for as long as ``fit()`` runs, so the death of a rank loses only its current step
(`hocket.train.strategies.hosting`).

**A rank** is a worker of `hocket.ps`. It makes the variables on the servers, or finds those that another rank has made.
Its steps are ::

    pull        (enters the gate, which may wait if staleness is bounded)
    compute
    push        (applied by each server wholly or not at all; leaves the gate)

**Exactly once.** Each push has the number of its step. A restarted rank begins where its training function begins: at
the start, or at the step in the optimizer's state that it loads. The servers drop steps that they have had before. So
after a failure no step counts twice, whether the function repeats steps or not, and nothing is rolled back. Only if the
function loads parameters into the model, the servers take these, and the following steps count again: each load begins
a *generation*, and a step's number is (generation, step).

All ranks load the same values, at different times. Only the first rank's load counts, because a later one would undo
the steps since.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import numpy as np
import numpy.typing as npt

from hocket import exceptions, ps
from hocket._base import texts
from hocket.collective import turns
from hocket.ps import errors as ps_errors
from hocket.ps import strategy as strategy_module
from hocket.ps.access import closure_context, links
from hocket.ps.stores import gate, records
from hocket.train import strategies
from hocket.train.rank import worker_session
from hocket.train.strategies import hosting, parameter_server, strategy

_log = logging.getLogger("hocket.train")

Array: TypeAlias = npt.NDArray[Any]

_LOADER: Final = gate.MAX_WORKERS - 1
"""The worker number that loads parameters. No rank has this number."""

_GENERATION: Final = 1 << 32
"""The factor of the generation in a step's number: more than any number of steps."""

_LOADS: Final = 1 << 16
"""The factor of the attempt in a generation's number: more than the loads of one attempt."""

_ROUNDING: Final = 1e-4
"""The relative difference allowed between sums of squares in float32 that were computed in different orders."""

_CHUNK_ROWS: Final = 1 << 16
"""The number of a table's rows that are read or written at once. A guess."""


# --- in the driver ---------------------------------------------------------------------------------------------------


@final
class _Servers(hosting.Host):
    """The servers of a run."""

    def __init__(self, settings: strategies.ParameterServer, num_workers: int) -> None:
        if num_workers >= _LOADER:
            raise ValueError(
                f"ParameterServer takes at most {_LOADER - 1} ranks, but received num_workers={num_workers}. Use fewer."
            )
        self._settings = settings
        self._num_workers = num_workers
        self._opened = self._open()
        super().__init__(self._describe())

    def _open(self) -> ps.ParameterServerStrategy:
        settings = self._settings
        return ps.ParameterServerStrategy(
            {"worker": self._num_workers, "server": settings.num_servers},
            max_staleness=settings.max_staleness,
            bad_gradients=settings.bad_gradients,
            scale_by_staleness=settings.scale_by_staleness,
            timeout_s=settings.timeout_s,
            hosted=True,
        )

    def _describe(self) -> parameter_server.OpenParameterServer:
        remote = strategy_module.RemoteStrategy(self._opened.address)
        return parameter_server.OpenParameterServer(self._settings, self._num_workers, remote)

    def renew(self) -> bool:
        """Begin with empty servers if the process that kept their memory has ended."""
        if not self._opened.is_lost:
            return False
        _log.warning(
            "The process that kept the servers' memory has ended, so the parameters are lost. New servers are started; "
            "the run goes on from its last checkpoint, or from the beginning if there is none."
        )
        self._opened.close()
        self._opened = self._open()
        self.strategy = self._describe()
        return True

    def get_statistics(self) -> dict[str, object]:
        """Return the servers' counts, with the number of pushes of each staleness.

        If the servers are lost, return an empty dict: the training is done, and must not fail for its statistics."""
        try:
            return {**self._opened.statistics(), "staleness": self._opened.get_staleness()}
        except (exceptions.HocketError, ps_errors.ParameterServerError) as error:
            _log.warning("Result.statistics is empty, because the servers do not answer: %s", texts.describe(error))
            return {}

    def close(self) -> None:
        """End the servers, and unmap their memory from this process."""
        self._opened.close()
        del self._opened


@hosting.open_host.register
def _(strategy: strategies.ParameterServer, num_workers: int) -> hosting.Host:
    return _Servers(strategy, num_workers)


# --- in the ranks ----------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class Gradient:
    """The effect of a step on one parameter."""

    target: Any
    """The `ps.Variable` or `ps.Embedding`."""
    value: Any
    """The gradient: an array, or `ps.IndexedSlices` for a table."""
    scale: float = 1.0
    """The factor of the optimizer's learning rate."""


@final
class Client:
    """A rank as a worker of the servers. Its methods are called from the thread that trains.

    Args:
        opened: The run's servers.
        session: The rank's session.
    """

    def __init__(self, opened: parameter_server.OpenParameterServer, session: worker_session.WorkerSession) -> None:
        info = session.info
        self.settings: Final = opened.settings
        self.rank: Final = info.rank
        self.world_size: Final = info.world_size
        self.dropped = 0
        """The number of pushes that were dropped because the servers had had them."""
        self._session = session
        self._remote = opened.remote
        self._link = links.open_link(opened.remote.address)
        self._attempt = info.attempt
        self._loads = 0
        self._has_pushed = True
        self._loader = closure_context.ClosureContext(_LOADER)
        self._loader.begin(info.attempt + 1)
        self._here = closure_context.ClosureContext(info.rank)
        self._forget_dead(opened.num_workers)
        generation = np.zeros(1, np.int64)
        self._generation = self._remote.make_variable(generation, name="hocket.generation", exist_ok=True)
        self._current = int(self._generation.read_value()[0])
        session.before_waiting.append(self.leave)  # a rank that waits for others must not block them at the gate

    def _forget_dead(self, num_workers: int) -> None:
        """Remove dead ranks from the gate. All ranks of an attempt have died when the next attempt starts."""
        if self._attempt == 0:
            return
        self._link.gate.forget(self.rank)
        if self.rank == 0:  # also for ranks that a smaller group no longer has
            for worker in range(self.world_size, num_workers):
                self._link.gate.forget(worker)

    # -- making --

    def make_variable(self, name: str, value: Array, optimizer: ps.Optimizer, *, is_made: bool = False) -> object:
        """Return a variable; an existing variable keeps its value. With `is_made` the given value is not sent."""
        return self._remote.make_variable(
            np.zeros if is_made else value,
            name=name,
            shape=value.shape,
            dtype=value.dtype,
            optimizer=optimizer,
            exist_ok=True,
        )

    def make_table(self, name: str, value: Array, optimizer: ps.Optimizer, *, is_made: bool = False) -> Any:
        """Return a table; an existing table keeps its rows. With `is_made` the given rows are not sent."""
        return self._remote.make_embedding(
            *value.shape,
            name=name,
            dtype=value.dtype,
            initial_value=None if is_made else value,
            optimizer=optimizer,
            exist_ok=True,
        )

    # -- steps --

    @property
    def is_inside(self) -> bool:
        """Whether this rank is in the gate: it has pulled values, and may push their gradients."""
        return self._here.is_inside

    @property
    def enters_early(self) -> bool:
        """Whether to pull at the end of a step, before the next one begins: if no rank could have to wait for this."""
        return self.settings.max_staleness is None or self.world_size == 1

    @property
    def version(self) -> int:
        """The number of pushes of all ranks."""
        return self._link.gate.version

    def enter(self) -> None:
        """Begin a step, and note the version that it reads. Waits if other ranks must push first."""
        self._link.enter(self._here)

    def enter_early(self) -> None:
        """Begin the next step at the end of a step, for frameworks that do not show when the next one begins."""
        ours = turns.get_optional_turns()
        # Ranks that take turns in one process cannot wait for each other in the gate: their steps begin at the push.
        if ours is None or ours.size == 1 or self.settings.max_staleness is None:
            self.enter()

    def push(self, step: int, gradients: Sequence[Gradient]) -> links.Outcome:
        """End a step.

        Args:
            step: The step's number in the generation, from 1.
            gradients: The gradients of different parameters.

        Returns:
            Whether the step was applied, and its staleness.
        """
        if not self.is_inside:  # a second step after one pull, such as that of another optimizer
            self.enter()
        operations: dict[int, list[records.Operation]] = {}
        for gradient in gradients:
            found = gradient.target.build_operations(gradient.value, gradient.scale)
            if found is None:
                operations.clear()
                break
            for server, some in found.items():
                operations.setdefault(server, []).extend(some)
        if not operations:
            self.leave()
            return links.Outcome(is_applied=False, staleness=0)
        self._has_pushed = True
        self._here.begin(self._current * _GENERATION + step)  # the servers drop a push with a number that they know
        outcome = self._link.push(self._here, operations)
        if not outcome.is_applied:
            self._note_dropped(step)
        return outcome

    def leave(self) -> None:
        """Give up a step that was begun, so that other ranks need not wait for it."""
        self._here.leave()

    def _note_dropped(self, step: int) -> None:
        if not self.dropped and step == 1 and self._session.checkpoint is not None:
            _log.warning(
                "Rank %d counts its steps from 1, although the run goes on from a checkpoint: the servers have already "
                "received these steps, and drop them. Load the optimizer's state together with the model's, because it "
                "has the number of the step; see 'Failures' under ParameterServer in docs/train.md.",
                self.rank,
            )
        elif not self.dropped:
            _log.info(
                "The servers received step %d of rank %d before the ranks were started again. Steps that are repeated "
                "count once.",
                step,
                self.rank,
            )
        self.dropped += 1

    def pass_turn(self) -> None:
        """Let the other ranks of this process take a step each."""
        ours = turns.get_optional_turns()
        if ours is None or ours.size == 1:
            return
        looks = iter((False, True))  # not over at the first look, so that the others get their turns
        ours.wait(lambda: next(looks, True), "ends a step", needs_rank=False)

    # -- reading and writing outside of steps --

    def read(self, variable: Any, out: Array | None = None) -> Array:
        """Return a variable's present value, without beginning a step."""
        value: Array = variable.read_value(out)
        return value

    def look_up(self, table: Any, ids: Array, *, begins_step: bool) -> Any:
        """Return rows of a table, a `hocket.ps.variables.embedding.Lookup`.

        Args:
            table: The table.
            ids: The rows' indices, of any shape. Equal indices are read once.
            begins_step: Whether this begins a step, with a push of the rows' gradients.
        """
        with closure_context.entered(self._here) if begins_step else contextlib.nullcontext():
            return table.pull(ids)

    def read_table(self, table: Any, rows: int) -> Array:
        """Return a whole table."""
        whole = np.empty((rows, table.dim), table.dtype)
        for ids in _split(rows):
            whole[ids] = self.look_up(table, ids, begins_step=False).rows
        return whole

    def load(self, values: Sequence[tuple[Any, Array]]) -> None:
        """Load values into variables and tables, unless a rank of this attempt has done so. Later steps count again.

        Args:
            values: Pairs of a variable or a table, and an array for the whole of it.
        """
        if self._has_pushed:  # else this call loads another part of the same model
            self._loads += 1
            self._has_pushed = False
        # All ranks push the same values under the same worker and numbers, so the servers take only the first rank's.
        with closure_context.entered(self._loader):
            for target, value in values:
                if isinstance(target, ps.Embedding):
                    for ids in _split(len(value)):
                        target.assign_rows(ids, value[ids])
                else:
                    target.assign(np.asarray(value, target.dtype))
            self._generation.assign(np.array([(self._attempt + 1) * _LOADS + self._loads], np.int64))
        self._current = int(self._generation.read_value()[0])

    def close(self) -> None:
        """Leave the gate for good."""
        self.leave()
        self._session.before_waiting.remove(self.leave)


@final
class PulledWeights:
    """The weights that a rank has pulled, as sums of squares.

    They show whether the program changes weights in the rank. The servers would never learn of such a change.

    Args:
        remedy: Advice for the framework's programs on how to change a model's weights.
    """

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self._squares: dict[str, float] = {}

    def note(self, name: str, array: Array) -> None:
        """Note a parameter's value from the servers."""
        self._squares[name] = sum_squares(array)

    def forget(self) -> None:
        """Forget all values, because the program may change them now."""
        self._squares.clear()

    def is_same(self, name: str, squares: float) -> bool:
        """Return whether a parameter may be equal to the pulled value; also true if one of them is not known."""
        pulled = self._squares.get(name, math.nan)
        is_known = math.isfinite(pulled) and math.isfinite(squares)
        return not is_known or abs(pulled - squares) <= _ROUNDING * max(pulled, squares)

    def check(self, name: str, squares: float) -> None:
        """Raise if a parameter differs from its pulled value. A relative difference up to 1e-4 is rounding.

        Raises:
            ValueError: The program has changed the parameter.
        """
        if not self.is_same(name, squares):
            pulled = self._squares[name]
            raise ValueError(
                f"The program changed the weights `{name}` after they came from the servers: their norm was "
                f"{math.sqrt(pulled):.6g}, and is now {math.sqrt(squares):.6g}. With ParameterServer the servers hold "
                f"the weights, so the next step would undo the change. {self._remedy}, or use AllReduce()."
            )


def sum_squares(array: Array) -> float:
    """Return the sum of the squares of an array's elements."""
    flat = array.reshape(-1)
    return float(np.dot(flat, flat))


def find_scale(lr: float, optimizer: Any) -> float:
    """Return the factor that turns the learning rate of an optimizer into `lr`."""
    return lr / float(optimizer.lr)


def _split(rows: int) -> Iterator[Array]:
    for start in range(0, rows, _CHUNK_ROWS):
        yield np.arange(start, min(start + _CHUNK_ROWS, rows), dtype=np.int64)


@final
class ServedSteps(strategy.StrategyRuntime):
    """The runtime of `ParameterServer` on host arrays: the servers take the steps.

    The rank's optimizer only counts steps and keeps its learning rate. Each parameter moves whole, even a table,
    because a compiled step has fixed shapes, and the number of rows in a batch varies. A framework's loop evaluates and
    reports at the end of an epoch. There the ranks wait for each other, and all read the same values.

    Args:
        client: The rank as a worker of the servers.
        joined: The ranks' collectives.
    """

    takes_steps = True

    def __init__(self, client: Client, joined: strategy.Collectives) -> None:
        self._world = joined
        self._client = client
        self._made: list[Any] = []
        """The servers' variables, in the order of the model's parameters."""
        self._chosen: Sequence[int] = ()
        self._has_model = False
        self._step = 0
        self._seen: Array | None = None
        """The last pulled weights, to detect a change by the program since; None after a step."""
        self._names: list[str] = []
        self._pulled = PulledWeights("Change weights between two calls of fit()")

    def open_next(self) -> strategy.StrategyRuntime:
        if self._has_model:
            raise ValueError(
                "prepare_model() received a second model, but with ParameterServer the servers hold the weights of "
                "one. Make one model of both, or train the second model in a trainer of its own."
            )
        self._has_model = True
        return self

    def choose(self, numbers: Sequence[int]) -> None:
        self._chosen = tuple(numbers)

    def take_step(self, flat: Array, rate: float, *, counts: bool) -> None:
        self._seen = None
        targets = [self._made[number] for number in self._chosen]
        parts = strategy.unflatten(flat[:-1], [target.shape for target in targets])
        if counts:
            self._step += 1
            gradients = [
                Gradient(target, part.astype(target.dtype), find_scale(rate, target.optimizer))
                for target, part in zip(targets, parts, strict=True)
            ]
            self._client.push(self._step, gradients)
            self._client.pass_turn()
            self._client.enter_early()
        for target, part in zip(targets, parts, strict=True):
            part[...] = self._client.read(target)
            self._pulled.note(target.name, part)

    def see_weights(self, squares: Array) -> None:
        for number, found in zip(self._chosen, squares, strict=True):
            self._pulled.check(self._made[number].name, float(found))

    @property
    def has_begun(self) -> bool:  # type: ignore[override]  # it is known only when the servers have the parameters
        return bool(self._made)

    def begin(self, model: strategy.HostModel) -> None:
        values = model.read()
        if self._made and model.names != self._names:
            raise ValueError(
                f"The model trains {len(values)} variables now, which are not the {len(self._made)} of its first "
                "fit(), but with ParameterServer the servers hold those. Freeze and thaw layers before the first "
                "fit(); train each phase in a trainer of its own, from the checkpoint of the phase before; or use "
                "AllReduce()."
            )
        if not self._made:
            rules, self._names = model.list_rules(), model.names
            if self._world.rank > 0:
                self._world.barrier()  # rank 0 makes them
            for number, (value, (name, rule)) in enumerate(zip(values, rules, strict=True)):
                wide = value if value.dtype == np.float64 else value.astype(np.float32)
                self._made.append(
                    self._client.make_variable(f"{number}/{name}", wide, rule, is_made=self._world.rank > 0)
                )
            if self._world.rank == 0:
                self._world.barrier()
        elif self._is_changed(values):
            self._client.load(list(zip(self._made, values, strict=True)))
        self._pulled.forget()
        self._seen = strategy.flatten(values)
        self._step = model.steps_taken

    def _is_changed(self, values: Sequence[Array]) -> bool:
        """Return whether the program has changed the model's weights since the last pull or step."""
        if self._seen is not None:
            return not np.array_equal(self._seen, strategy.flatten(values))
        pairs = zip(self._made, values, strict=True)
        return not all(self._pulled.is_same(target.name, sum_squares(value)) for target, value in pairs)

    def begin_epoch(self, model: strategy.HostModel) -> None:
        if self._seen is not None and not np.array_equal(self._seen, model.read_flat(), equal_nan=True):
            raise ValueError(
                "The program changed the model's weights between two epochs of fit(), but with ParameterServer the "
                "servers hold the weights, and do not see that change. Change weights between two calls of fit(), or "
                "use AllReduce()."
            )
        self._client.enter_early()
        self._pull(model)

    def synchronize(self, model: strategy.HostModel) -> None:
        self._client.leave()
        if not self._made:
            return
        self._world.barrier()  # no rank pushes after this
        self._pull(model)
        self._world.barrier()  # no rank pushes before all have read

    def close(self) -> None:
        self._client.close()

    def _pull(self, model: strategy.HostModel) -> None:
        found = [self._client.read(target) for target in self._made]
        model.write(found)
        self._seen = model.read_flat()
        for target, value in zip(self._made, found, strict=True):
            self._pulled.note(target.name, value)


def open_steps(opened: parameter_server.OpenParameterServer, ranks: strategy.Ranks) -> ServedSteps:
    """Return the runtime on host arrays for the calling rank."""
    return ServedSteps(open_client(opened, "strategies.ParameterServer"), ranks.world)


def open_client(opened: parameter_server.OpenParameterServer, caller: str) -> Client:
    """Return a client for the calling rank. Messages use the caller's name, that of the trainer."""
    return Client(opened, worker_session.get_session(caller))
