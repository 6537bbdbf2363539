"""A searcher whose proposals come from Optuna's samplers.

The search's trials are trials of an Optuna study. A proposal depends on the seed, on its number and on the study's
trials (`Randomness` ensures this). A search that goes on after a crash has a new study. If the sampler looks only at
trials, the old proposals are put into the study without asking the sampler. Samplers that keep notes in the study
(CMA-ES, NSGA-II, grids, quasi-random sequences) propose again, in the same order.

Akiba, Sano, Yanase, Ohta and Koyama, "Optuna: A Next-generation Hyperparameter Optimization Framework", 2019. The
default sampler is the Tree-structured Parzen Estimator of Bergstra, Bardenet, Bengio and Kégl, "Algorithms for
Hyper-Parameter Optimization", 2011.
"""

from __future__ import annotations

import copy
import logging
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

import cloudpickle
import numpy as np

from hocket import keywords
from hocket.stores import trust
from hocket.train.tracking import plain
from hocket.tune import errors
from hocket.tune.search import paths, points, searcher
from hocket.tune.search.optuna import adapter, distributions

_log = logging.getLogger(__name__)

TRIAL_ID: Final = "hocket:trial_id"
"""The user attribute in Optuna's storage that holds our id of a trial."""

_ANONYMOUS: Final = "_metric"
"""The metric's name if only a mode is given. Ray's."""


_FITTED: Final = ("_gprs_cache_list", "_constraints_gprs_cache_list")
"""The attributes in which `GPSampler` keeps its last fitted processes, from which the next fit starts."""

_FROM_TRIALS_ALONE: Final = ("RandomSampler", "TPESampler", "GPSampler", "BruteForceSampler")
"""Samplers that look only at trials' parameters and results. Others keep notes in the study."""


@keywords.guard_init
@final
class OptunaSearch(searcher.Searcher):
    """A searcher that proposes configurations by one of Optuna's samplers. It needs the extra ``tune``.

    Args:
        space: A dict of domains, or of Optuna's distributions; or a function that suggests values on an Optuna trial
            and may return a dict of constants. Default: the search's ``param_space``.
        metric: The metric, or a list of several. Default: the search's.
        mode: ``"min"`` or ``"max"``, or a list with one for each metric. Default: the search's.
        points_to_evaluate: Whole or partial configurations to begin with.
        sampler: One of ``optuna.samplers``. It keeps a seed of its own. Default: ``TPESampler()``.
        study_name: The study's name in Optuna's storage. Default: ``"optuna"``.
        storage: An Optuna storage or its URL, such as ``"sqlite:///study.db"``, where other programs can inspect the
            study; trials that it already has count. Default: this process's memory.
        seed: 0 or more. Default: the sampler's, or else the search's.
        evaluated_rewards: The results of `points_to_evaluate`, if known. These points are then not tried again.

    Raises:
        MissingExtraError: Optuna is not installed.
        TypeError: An argument has the wrong type.
        ValueError: An argument has an impossible value, or Optuna cannot draw a domain of the space.

    Example:
        >>> from hocket.tune.search.optuna import OptunaSearch
        >>> from hocket.tune.search.space import uniform
        >>> searcher = OptunaSearch({"x": uniform(-1, 1)}, metric="loss", mode="min", seed=1)
        >>> config = searcher.suggest("t0")
        >>> searcher.on_trial_complete("t0", {"loss": config["x"] ** 2})
    """

    def __init__(
        self,
        space: object = None,
        metric: str | list[str] | None = None,
        mode: str | list[str] | None = None,
        points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
        sampler: object = None,
        study_name: str | None = None,
        storage: object = None,
        seed: int | None = None,
        evaluated_rewards: Sequence[float] | None = None,
    ) -> None:
        self._optuna = adapter.load()
        _check_objectives(metric, mode)
        super().__init__(metric or (_ANONYMOUS if mode else None), mode)  # type: ignore[arg-type]
        self._space = None if space is None or space == {} else distributions.build(space)
        self._points = copy.deepcopy(points.check(points_to_evaluate))
        self._rewards = None if evaluated_rewards is None else list(evaluated_rewards)
        _check_rest(self._optuna, sampler, storage, seed, self._points, self._rewards)
        self._sampler, self._study_name, self._seed = sampler, study_name or "optuna", seed
        self._given_storage, self._search_seed = storage, 0
        self._constants: dict[str, object] = {}
        self._study: Any = None
        #: Configurations with known results that came before the study.
        self._early: list[dict[str, Any]] = []
        #: The number of proposed or restored trials, which is the next one's number.
        self._proposed = 0
        #: Optuna's ids of our trials, and the trials whose results the study has.
        self._ids: dict[str, int] = {}
        self._told: set[str] = set()
        #: Trials that the storage already had, by our ids.
        self._present: dict[str, Any] = {}
        self._exhausted = False

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: Mapping[str, object], **spec: Any
    ) -> bool:
        """Take the search's metric, mode, space and seed, unless the searcher has its own.

        Args:
            metric: The metric.
            mode: ``"max"`` or ``"min"``.
            config: The space. If the searcher has its own, the constants of this one are added to proposals.
            **spec: ``seed``.

        Returns:
            False if both have a space, or different metrics or modes.

        Raises:
            TypeError: A value of the space looks like a domain but is none.
            ValueError: Optuna cannot draw a domain, or the space has no domain.
        """
        for ours, theirs in ((self.metric, metric), (self.mode, mode)):
            if ours and theirs and ours not in (theirs, _ANONYMOUS):
                return False
        if self._study is not None and config:
            return False
        if self._space is not None and paths.is_open(dict(config)):
            return False
        if self._space is None:
            self._space = distributions.build(config)
        else:
            self._constants = dict(config)
        self.metric = metric if self.metric in (None, _ANONYMOUS) and metric else self.metric
        self.mode = self.mode or mode
        self._search_seed = int(spec.get("seed") or 0)
        self._get_study()
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        study, space = self._get_study(), self._get_space()
        if trial_id in self._present:
            frozen = self._adopt(trial_id)
            return self._complete(space.build_config(frozen))
        if self._exhausted:
            return self.FINISHED
        self._randomness.seed_for(self._proposed)
        if self._rewards is None and self._proposed < len(self._points):
            study.enqueue_trial(space.read(self._points[self._proposed], partial=True)[0])
        trial, config = space.ask(study)
        self._proposed += 1
        self._ids[trial_id] = adapter.get_internals().get_number(trial)
        if self._given_storage is not None:
            self._storage.set_trial_user_attr(adapter.get_internals().get_number(trial), TRIAL_ID, trial_id)
        return self._complete(config)

    def on_trial_restored(self, trial_id: str, config: Mapping[str, object]) -> None:
        """Put an earlier proposal into the study.

        Raises:
            ValueError: The configuration is not from this space.
        """
        self._get_study()
        if trial_id in self._present:
            self._adopt(trial_id)
            return
        params, found = self._get_space().read(config)
        if not self._randomness.proposes_from_trials_alone:
            self.suggest(trial_id)
            if self._storage.get_trial(self._ids[trial_id]).params == params:
                return
            _log.warning(
                "Trial %s has values that OptunaSearch would not propose now: %s. Was the search begun with another "
                "sampler, seed or space, or another version of Optuna?", trial_id, params,
            )  # fmt: skip
            self._storage.set_trial_state_values(self._ids[trial_id], self._optuna.trial.TrialState.FAIL)
            self._proposed -= 1
        self._proposed += 1
        try:
            self._ids[trial_id] = self._put(params, found, self._optuna.trial.TrialState.RUNNING, {TRIAL_ID: trial_id})
        except ValueError as error:  # the space is narrower now
            _log.warning("Trial %s is left out of the study, because it does not fit its space: %s", trial_id, error)

    def on_trial_result(self, trial_id: str, result: Mapping[str, object]) -> None:
        """Store a report's value, which counts for a trial without a final result. No effect with several metrics."""
        if len(self._get_names()) > 1 or trial_id not in self._ids or trial_id in self._told:
            return
        value = self._read_values(result)[0]
        step = result.get("training_iteration")
        if value is not None and isinstance(step, int):
            self._storage.set_trial_intermediate_value(self._ids[trial_id], step, value)

    def on_trial_complete(self, trial_id: str, result: Mapping[str, object] | None = None, error: bool = False) -> None:
        """Pass a trial's result to the study: pruned without the metric, failed after an error or with NaN.

        Ignore trials that this searcher has not proposed.
        """
        if trial_id not in self._ids or trial_id in self._told:
            return
        self._told.add(trial_id)
        states = self._optuna.trial.TrialState
        values = [None] if result is None else self._read_values(result)
        if error or any(value is not None and math.isnan(value) for value in values):
            self._tell(trial_id, None, states.FAIL)
        elif None in values:
            self._tell(trial_id, None, states.PRUNED)
        else:
            self._tell(trial_id, values, states.COMPLETE)

    def add_evaluated_point(
        self,
        parameters: Mapping[str, object],
        value: float,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: Sequence[float] | None = None,
    ) -> None:
        """Take in a configuration with a known result.

        Args:
            parameters: The configuration.
            value: Its metric.
            error: Whether it failed; `value` then has no effect.
            pruned: Whether it was stopped early.
            intermediate_values: The metric after each iteration.

        Raises:
            ValueError: The configuration is not from this space.
        """
        states = self._optuna.trial.TrialState
        self._early.append(
            {
                "parameters": dict(parameters),
                "state": states.FAIL if error else states.PRUNED if pruned else states.COMPLETE,
                "values": None if error else list(value) if isinstance(value, Sequence) else [value],
                "intermediate_values": dict(enumerate(intermediate_values or ())),
            }
        )
        if self._study is not None:
            self._add_points()

    def save(self, checkpoint_path: str) -> None:
        state = {key: value for key, value in vars(self).items() if key != "_optuna"}
        Path(checkpoint_path).write_bytes(cloudpickle.dumps(state))

    def restore(self, checkpoint_path: str) -> None:
        vars(self).update(trust.load_file(checkpoint_path, "OptunaSearch.restore()"))

    # --- the study ----------------------------------------------------------------------------------------------------

    def _get_space(self) -> distributions.OptunaSpace:
        if self._space is None:
            raise errors.TuneError(
                "OptunaSearch has no space. Write OptunaSearch(space, ...), or give param_space to the Tuner."
            )
        return self._space

    def _get_study(self) -> Any:
        if self._study is not None:
            return self._study
        space = self._get_space()
        if not self.metric or not self.mode:
            raise errors.TuneError(
                f"OptunaSearch needs a metric and a mode, but has metric={self.metric!r} and mode={self.mode!r}. Write "
                'OptunaSearch(metric="loss", mode="min"), or give them to TuneConfig.'
            )
        optuna = self._optuna
        for point in self._points:
            optuna.trial.create_trial(
                **_describe(*space.read(point, partial=True)), state=optuna.trial.TrialState.WAITING
            )
        sampler = self._sampler or optuna.samplers.TPESampler()
        self._randomness = Randomness(sampler, self._seed, self._search_seed)
        self._storage = optuna.storages.get_storage(self._given_storage)
        given: Any = self.mode
        modes = given if isinstance(given, list) else [given]
        directions = ["minimize" if mode == "min" else "maximize" for mode in modes]
        study = optuna.create_study(
            storage=self._storage, sampler=sampler, pruner=optuna.pruners.NopPruner(), study_name=self._study_name,
            directions=directions, load_if_exists=True,
        )  # fmt: skip
        if [direction.name.lower() for direction in study.directions] != directions:
            raise ValueError(
                f"The study {self._study_name!r} in the storage has the directions "
                f"{[direction.name for direction in study.directions]}, but mode is {self.mode!r}. Give study_name "
                "another name."
            )
        self._study = study
        if self._given_storage is not None:
            found = study.get_trials(deepcopy=False)
            self._present = {each.user_attrs[TRIAL_ID]: each for each in found if TRIAL_ID in each.user_attrs}
        for point, value in zip(self._points, self._rewards or (), strict=False):
            self.add_evaluated_point(point, value)
        self._add_points()
        return study

    def _add_points(self) -> None:
        early, self._early = self._early, []
        for each in early:
            params, found = self._get_space().read(each.pop("parameters"))
            mark = f"evaluated {params!r}"
            if mark not in self._present:
                self._put(params, found, attributes={TRIAL_ID: mark}, **each)

    def _put(self, params: Any, found: Any, state: object, attributes: dict[str, str], **rest: Any) -> int:
        """Put a trial into the study as it is; return its Optuna id."""
        trial = self._optuna.trial.create_trial(**_describe(params, found), state=state, user_attrs=attributes, **rest)
        made: int = self._storage.create_new_trial(
            self._storage.get_study_id_from_name(self._study_name), template_trial=trial
        )
        return made

    def _adopt(self, trial_id: str) -> object:
        """Continue a trial that the storage has."""
        frozen = self._present.pop(trial_id)
        self._ids[trial_id] = adapter.get_internals().get_number(frozen)
        self._proposed += 1
        if frozen.state.is_finished():
            self._told.add(trial_id)
        return frozen

    def _tell(self, trial_id: str, values: object, state: object) -> None:
        number = self._storage.get_trial_number_from_id(self._ids[trial_id])
        try:
            self._study.tell(number, values, state=state)
        except RuntimeError:
            # An exhausted sampler stops Optuna's own loop, which raises here; by then the study has the result.
            if not self._storage.get_trial(self._ids[trial_id]).state.is_finished():
                raise
            self._exhausted = True

    def _read_values(self, result: Mapping[str, object]) -> list[float | None]:
        found = [plain.get_metric(result, name) for name in self._get_names()]
        return [float(value) if hasattr(value, "__float__") else None for value in found]

    def _get_names(self) -> list[str]:
        given: Any = self.metric
        return given if isinstance(given, list) else [given]

    def _complete(self, config: dict[str, object]) -> dict[str, object]:
        return {**self._constants, **config}


def _describe(params: dict[str, object], found: dict[str, object]) -> dict[str, object]:
    """Return arguments for `create_trial`; leave out values whose distribution is unknown."""
    return {"params": {name: params[name] for name in found}, "distributions": found}


def _check_objectives(metric: object, mode: Any) -> None:
    """Check the metrics and modes."""
    modes = mode if isinstance(mode, list) else [mode]
    for each in modes:
        if each not in ("min", "max") and mode is not None:
            raise ValueError(f"mode must be 'min' or 'max', or a list of these, but received {mode!r}.")
    if isinstance(mode, list) != isinstance(metric, list) and (isinstance(mode, list) or mode is not None):
        raise ValueError(
            f"metric and mode must both be lists or neither, but received {metric!r} and {mode!r}. Write "
            'metric=["loss", "time"], mode=["min", "min"].'
        )
    if isinstance(metric, list) and (mode is None or len(metric) != len(mode)):
        raise ValueError(f"mode must have one entry for each of the metrics {metric!r}, but received {mode!r}.")


def _check_rest(optuna: Any, sampler: object, storage: object, seed: Any, given: list[Any], rewards: Any) -> None:
    """Check the other arguments of `OptunaSearch`."""
    if sampler is not None and not isinstance(sampler, optuna.samplers.BaseSampler):
        raise TypeError(
            f"sampler must be one of optuna.samplers, but received {sampler!r}. Write optuna.samplers.TPESampler()."
        )
    if storage is not None and not isinstance(storage, str | optuna.storages.BaseStorage):
        raise TypeError(
            f"storage must be one of optuna.storages or a URL, but received {storage!r}. Write "
            "'sqlite:///study.db', or leave it out."
        )
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
        raise ValueError(f"seed must be an int of 0 or more, but received {seed!r}. Leave it out for the search's.")
    if rewards is not None and len(rewards) != len(given):
        raise ValueError(
            f"evaluated_rewards must have one entry for each of the {len(given)} points_to_evaluate, but received "
            f"{rewards!r}."
        )


@final
class Randomness:
    """The random generators of an Optuna sampler.

    A sampler's generators depend on all its earlier draws. Here they are seeded again before each proposal, with the
    search's seed and the proposal's number. A proposal then depends on these two and on the study's trials, so a
    resumed search with a new sampler makes the same proposals as before.

    In Optuna 3.6 (not in 4.5) a `GridSampler` without a seed shuffles its grid anew in each process. Resuming needs a
    seed.

    Args:
        sampler: An Optuna sampler, or an instance of a subclass of ``optuna.samplers.BaseSampler``.
        seed: The seed. Default: the sampler's own.
        default: The seed if there is no other.
    """

    def __init__(self, sampler: object, seed: int | None, default: int) -> None:
        parts = list(_find_parts(sampler, set()))
        self._generators = [part for part in parts if _is_generator(part)]
        self._fitted = [(part, name) for part in parts for name in _FITTED if hasattr(part, name)]
        found = _read_seed(self._generators)
        self._seed = next(each for each in (seed, found, default) if each is not None)
        for part in parts:
            # A quasi-random sequence has one seed for all trials.
            if type(part).__name__ == "QMCSampler" and (seed is not None or found is None):
                part._seed = self._seed
        samplers = [part for part in parts if hasattr(part, "sample_relative")]
        self.proposes_from_trials_alone = all(
            type(part).__name__ in _FROM_TRIALS_ALONE and type(part).__module__.startswith("optuna.")
            for part in samplers
        )
        """Whether a trial put into the study has the same effect as the sampler's own proposal."""

    def seed_for(self, number: int) -> None:
        """Seed the generators for a proposal."""
        seeds = np.random.SeedSequence([self._seed, number]).generate_state(max(1, len(self._generators)))
        for generator, seed in zip(self._generators, seeds.tolist(), strict=False):
            _seed(generator, seed)
        for part, name in self._fitted:
            setattr(part, name, None)


def _is_generator(part: object) -> bool:
    kinds = np.random.RandomState | np.random.Generator | random.Random
    return isinstance(part, kinds) or type(part).__name__ == "LazyRandomState"


def _seed(generator: Any, seed: int) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    elif isinstance(generator, np.random.RandomState | random.Random):
        generator.seed(seed)
    else:
        generator.rng.seed(seed)


def _find_parts(part: object, seen: set[int]) -> Iterator[Any]:
    """Yield a sampler and its parts, in the order of its attributes."""
    if id(part) in seen:
        return
    seen.add(id(part))
    if _is_generator(part):
        yield part
    elif isinstance(part, list | tuple | dict):
        for item in part.values() if isinstance(part, dict) else part:
            yield from _find_parts(item, seen)
    elif hasattr(part, "sample_relative") or (
        type(part).__module__.startswith("optuna.") and hasattr(part, "__dict__")
    ):
        yield part
        for item in list(vars(part).values()):
            yield from _find_parts(item, seen)


def _read_seed(generators: list[object]) -> int | None:
    """Return a number that depends on the sampler's own seed; None if it has none."""
    for generator in generators:
        state = copy.deepcopy(adapter.get_internals().get_generator(generator))
        if isinstance(state, np.random.RandomState):
            return int(state.randint(2**31))
    return None
