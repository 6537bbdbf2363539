"""The entry to a search: make a `Tuner` from a function, a space and a number of samples, and call `fit`."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

import cloudpickle

from hocket import keywords
from hocket._base import texts
from hocket.stores import local_files, places
from hocket.stores import trust as trust_module
from hocket.train.checkpoints import storage
from hocket.tune import checks, configs, encoding, errors, log, opening, program_builder, result_grid, stored

TuneConfig = configs.TuneConfig  # Ray's programs import it from here, too

_log = logging.getLogger("hocket.tune")

SETUP_NAME: Final = "tuner.pickle"
"""The file in a search's folder that holds its `Tuner`'s arguments, for `Tuner.restore`."""

_ARGUMENTS: Final = {"space": "param_space", "tune": "tune_config", "run": "run_config"}


@final
@keywords.guard_methods
@keywords.explained(
    aliases={"config": "param_space", "space": "param_space"},
    nested={"tune_config": configs.TuneConfig, "run_config": configs.RunConfig},
)
class Tuner:
    """A search over the configurations of a function, a `Trainable` or a trainer.

    Args:
        trainable: A function of the configuration, which calls `report`, returns a dict or yields dicts; a `Trainable`;
            a trainer, with the keys ``train_loop_config``, ``scaling_config`` and ``datasets`` in its space; or a
            registered name.
        param_space: The search space, a dict: constants, domains such as `uniform`, `grid_search`; nested at will.
        tune_config: How to search.
        run_config: Name, storage, stop rule, failures, checkpoints, callbacks.

    Raises:
        TypeError: The trainable is none of these, or a configuration has the wrong type.
        ValueError: The space has an impossible domain, such as an empty `choice`.

    Example:
        >>> from hocket import tune
        >>> def objective(config):
        ...     for step in range(1, 4):
        ...         tune.report({"loss": (config["x"] - 3) ** 2 / step})
        >>> tuner = tune.Tuner(
        ...     objective,
        ...     param_space={"x": tune.grid_search([1, 2, 3])},
        ...     tune_config=tune.TuneConfig(metric="loss", mode="min"),
        ...     run_config=tune.RunConfig(verbose=0),
        ... )
        >>> tuner.fit().get_best_result().config
        {'x': 3}
    """

    def __init__(
        self,
        trainable: object = None,
        *,
        param_space: Mapping[str, object] | None = None,
        tune_config: configs.TuneConfig | None = None,
        run_config: configs.AnyRunConfig | None = None,
    ) -> None:
        if trainable is None:
            raise TypeError("Tuner() needs a trainable, but received None. Write Tuner(function, param_space={...}).")
        self._setup = opening.Setup(
            trainable,
            _check_space(param_space),
            _check("tune_config", tune_config, configs.TuneConfig),
            _check("run_config", configs.read_run_config(run_config), configs.RunConfig),
        )
        program_builder.describe(trainable, reuses=False)
        opening.check_space(self._setup)
        self._restored: Path | places.Place | None = None
        self._resume = configs.ResumeConfig()
        self._trust = False
        self._prefix = ""

    def __repr__(self) -> str:
        name = getattr(self._setup.trainable, "__name__", None) or repr(self._setup.trainable)
        return f"Tuner({name}, param_space={texts.safe_repr(self._setup.space)})"

    @classmethod
    def restore(
        cls,
        path: str | os.PathLike[str],
        trainable: object,
        resume_unfinished: bool = True,
        resume_errored: bool = False,
        restart_errored: bool = False,
        param_space: Mapping[str, object] | None = None,
        storage_filesystem: object = None,
        _resume_config: configs.ResumeConfig | None = None,
        *,
        tune_config: configs.TuneConfig | None = None,
        run_config: configs.AnyRunConfig | None = None,
        trust: bool = False,
    ) -> Tuner:
        """Return a tuner that goes on with a search, however it ended: `fit` runs the rest of it.

        Finished trials do not run again. The searcher makes the proposals it would have made. The folder may move.

        Args:
            path: The search's folder, or an address such as ``s3://bucket/searches/name``.
            trainable: The trainable of the search, unchanged.
            resume_unfinished: Whether unfinished trials go on from their latest checkpoints.
            resume_errored: Whether failed trials go on from their latest checkpoints.
            restart_errored: Whether failed trials begin anew.
            param_space: Another space for the trials still to be proposed, such as a narrower one.
            storage_filesystem: A file system of pyarrow or fsspec that holds `path`. Default: this machine's, unless
                `path` is an address.
            tune_config: Changed settings, such as more samples or another scheduler. Default: the search's.
            run_config: Changed settings, such as a stop rule; name and path have no effect. Default: the search's.
            trust: Whether to unpickle the folder's files, which runs code, even if other users may write to it.

        Raises:
            TuneError: The folder has no search.
            UntrustedFolderError: Other users may write to the folder, and `trust` is False.
            StoreError: The store does not answer, or refuses.
        """
        home = _locate(path, storage_filesystem)
        flags = {"resume_unfinished": resume_unfinished, "resume_errored": resume_errored}
        for name, flag in {**flags, "restart_errored": restart_errored, "trust": trust}.items():
            checks.check_flag(name, flag)
        if run_config is not None:
            run_config = _check("run_config", configs.read_run_config(run_config), configs.RunConfig)
        if _resume_config is not None:
            _check("resume_config", _resume_config, configs.ResumeConfig)
        tuner = cls(
            trainable,
            param_space=param_space,
            tune_config=tune_config,
            run_config=dataclasses.replace(run_config or configs.RunConfig(), name=None),
        )
        given = {"space": param_space, "tune": tune_config, "run": run_config}
        with _opened(home) as folder:
            log.check_folder(folder)
            _build_opener(home, log.NAME, trust=trust).check()
            opener = _build_opener(home, SETUP_NAME, trust=trust)
            known = _read_setup(folder, [name for name, value in given.items() if value is None], opener)
        tuner._setup = dataclasses.replace(tuner._setup, **known)
        opening.check_space(tuner._setup)
        tuner._restored, tuner._trust = home, trust
        kinds = configs.ResumeType
        errored = kinds.RESUME if resume_errored else kinds.RESTART if restart_errored else kinds.SKIP
        unfinished = kinds.RESUME if resume_unfinished else kinds.SKIP
        tuner._resume = _resume_config or configs.ResumeConfig(unfinished=unfinished, errored=errored)
        return tuner

    @classmethod
    def can_restore(cls, path: str | os.PathLike[str], storage_filesystem: object = None) -> bool:
        """Return whether a folder has a search that `restore` can go on with."""
        try:
            with _opened(_locate(path, storage_filesystem)) as folder:
                log.check_folder(folder)
        except errors.TuneError:
            return False
        return True

    def fit(self) -> result_grid.ResultGrid:
        """Search, and return the outcomes of all trials. Trials that fail do not raise; see `ResultGrid.errors`.

        No trial runs any more when `fit` returns or raises, whatever happens. The search's folder holds all work done
        until then, and `restore` goes on from there. If an earlier search has the same name, the new one begins in its
        folder, and a warning names the file that now holds the earlier log.

        Raises:
            TuneError: A search of this name is running, a trial never reported the metric, or the log is not writable.
            StoreError: The search's store failed, also when tried again, or refuses. Everything sent before is whole.
            InfeasibleResourcesError: A trial holds more than the session can ever have.
        """
        home, is_new = self._restored or self._name_home(), self._restored is None
        if isinstance(home, places.Place):
            with stored.hold(home, is_new=is_new) as (folder, kept):
                self._fit(folder, kept.follow, home.shown if is_new else None)
        else:
            self._fit(home, lambda _: None, str(home) if is_new else None)
        self._restored = home
        return self.get_results()

    def _name_home(self) -> Path | places.Place:
        """Return the folder of a new search."""
        setup = self._setup
        name = setup.run.name or build_name(program_builder.describe(setup.trainable, reuses=False).name)
        outer = setup.run.locate()
        return outer.join(name) if isinstance(outer, places.Place) else outer / name

    def _fit(self, folder: Path, follow: Callable[[bool], None], begins_in: str | None) -> None:
        if begins_in is not None:
            storage.open_storage(storage.Storage(str(folder.parent), folder.name))
            if earlier := log.set_aside(folder, SETUP_NAME):
                _log.warning(
                    "A new search begins in %r, which has an earlier search. The files of its trials stay there; its "
                    "log is called %s now, and ResultGrid(%r, prefix=%r) reads it. For a folder of its own, give "
                    "RunConfig(name=...) another name; to go on with the latest search, write Tuner.restore(...).",
                    *(begins_in, log.name_earlier(earlier), begins_in, earlier),
                )
            local_files.write_synced(folder / SETUP_NAME, _pickle_setup(self._setup))
        home = self._restored or folder
        opener = None if begins_in is not None else _build_opener(home, log.NAME, trust=self._trust)
        opening.run(self._setup, folder, self._resume, follow, opener)
        self._prefix = str(log.check_folder(folder)["prefix"])

    def get_results(self) -> result_grid.ResultGrid:
        """Return the outcomes of the trials so far.

        Raises:
            RuntimeError: The search has not begun.
        """
        if self._restored is None:
            raise RuntimeError("get_results() was called before fit(). Call fit(), which returns the results.")
        given = self._setup.tune
        return result_grid.ResultGrid(self._restored, given.metric, given.mode, self._prefix, trust=self._trust)


def build_name(of: str) -> str:
    """Return a name for a search without one."""
    now = dt.datetime.now().astimezone()
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', of)}_{now:%Y-%m-%d_%H-%M-%S}_{secrets.token_hex(3)}"


def _pickle_setup(setup: opening.Setup) -> bytes:
    # A restored search may have moved, and its path may hold a password.
    run = dataclasses.replace(setup.run, storage_path=None, storage_filesystem=None)
    given = {"space": setup.space, "tune": setup.tune, "run": run}
    blob: bytes = cloudpickle.dumps({name: encoding.try_pickle(value) for name, value in given.items()})
    return blob


def _build_opener(home: Path | places.Place, name: str, *, trust: bool) -> trust_module.Opener:
    """Return the opener of pickled values in a file of a search's folder."""
    source = home if isinstance(home, places.Place) else home / name
    return trust_module.Opener(source, "Tuner.restore()", trust=trust)


def _read_setup(folder: Path, names: Sequence[str], opener: trust_module.Opener) -> dict[str, Any]:
    """Return a `Tuner`'s arguments by name, from the search's folder."""
    found: Any
    try:
        kept = opener.load(local_files.read_bytes(folder / SETUP_NAME))
        found = {name: kept[name] for name in names}
        found = {name: one if isinstance(one, str) else [opener.load(one)] for name, one in found.items()}
    except FileNotFoundError:
        found = dict.fromkeys(names, f"{SETUP_NAME} is missing")
    except (TypeError, LookupError) as error:
        found = dict.fromkeys(names, f"{SETUP_NAME} cannot be opened: {error}")
    for name in names:
        if isinstance(found[name], str):
            raise errors.TuneError(
                f"{_ARGUMENTS[name]} of the search in {str(folder)!r} could not be kept ({found[name]}). Pass it to "
                f"Tuner.restore(..., {_ARGUMENTS[name]}=...)."
            )
    return {name: found[name][0] for name in names}


def _locate(given: object, filesystem: object) -> Path | places.Place:
    """Return the folder of a search, from its path or address."""
    if not isinstance(given, str | os.PathLike):
        raise TypeError(
            f"path must be the folder of a search, but received {given!r}. Write ResultGrid.experiment_path, or "
            "RunConfig.storage_path with RunConfig.name."
        )
    found = places.locate(given, filesystem, "Tuner.restore()")
    return found if isinstance(found, places.Place) else Path(found).expanduser().absolute()


@contextlib.contextmanager
def _opened(home: Path | places.Place) -> Iterator[Path]:
    """Yield a folder that has a search's log and its `Tuner`'s arguments."""
    if not isinstance(home, places.Place):
        yield home
        return
    with stored.brought(home, log.NAME, SETUP_NAME) as folder:
        yield folder


def _check_space(given: object) -> dict[str, object]:
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(
            f"param_space must be a dict, but received {given!r}. Write {{'lr': tune.loguniform(1e-4, 1)}}."
        )
    return dict(given or {})


def _check(name: str, given: object, kind: Any) -> Any:
    if given is not None and not isinstance(given, kind):
        raise TypeError(
            f"{name} must be a {kind.__name__}, but received {given!r}. Write {name}=tune.{kind.__name__}(...)."
        )
    return given if given is not None else kind()
