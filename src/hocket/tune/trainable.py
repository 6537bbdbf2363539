"""Trials as a class: steps that the search calls one by one, with a state that can be saved."""

from __future__ import annotations

import hmac
import json
import os
import pickle
import secrets
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hocket.stores import local_files
from hocket.stores import trust as trust_module
from hocket.tune import errors

_DICT_NAME: Final = "state.pickle"
"""The file in a checkpoint for the dict that `Trainable.save_checkpoint` returned."""

_SIGNATURE_NAME: Final = ".state.signature"
"""The file beside it with the signature of the search that made it."""

_OWN_KEY: Final = secrets.token_bytes()

_METADATA_NAME: Final = ".trainable.json"
"""The file in a checkpoint with the number of steps done, and their seconds."""

DONE: Final = "done"
"""The key of a step's result that marks the trial's end."""


class Trainable:
    """The base of trials that are classes: override `setup`, `step`, `save_checkpoint` and `load_checkpoint`.

    In a search each trial has an instance, in its own process. Elsewhere, call ``train``, ``save`` and ``restore``.

    Args:
        config: The trial's configuration, for `setup`.

    Example:
        >>> from hocket import tune
        >>> class Halve(tune.Trainable):
        ...     def setup(self, config):
        ...         self.value = config["start"]
        ...     def step(self):
        ...         self.value /= 2
        ...         return {"value": self.value}
        >>> tuner = tune.Tuner(
        ...     Halve,
        ...     param_space={"start": tune.grid_search([8.0, 4.0])},
        ...     run_config=tune.RunConfig(stop={"training_iteration": 2}, verbose=0),
        ... )
        >>> tuner.fit().get_best_result("value", "min").metrics["value"]
        1.0
    """

    def __init__(self, config: dict[str, Any] | None = None, storage: None = None, logger_creator: None = None) -> None:
        self.config: dict[str, Any] = config or {}
        self._iteration = 0
        self._seconds = 0.0
        self._logdir: str | None = None
        self._trial_id = self._trial_name = "default"
        self._resources: Mapping[str, float] = {}
        self._key = _OWN_KEY
        self.setup(self.config)

    # --- methods to override ------------------------------------------------------------------------------------------

    def setup(self, config: dict[str, Any]) -> None:
        """Prepare a new instance."""

    def step(self) -> dict[str, Any]:
        """Do one step, and return its metrics. ``"done": True`` among them ends the trial."""
        raise NotImplementedError(f"{type(self).__name__} must have a method step(self), which returns metrics.")

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any] | None:
        """Save the state: write files into the folder, or return a dict, which `save` pickles there."""
        raise NotImplementedError(
            f"{type(self).__name__} must have a method save_checkpoint(self, checkpoint_dir) to be saved. Write it, "
            "and load_checkpoint(self, checkpoint)."
        )

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Restore the state from `save_checkpoint`'s folder, or from the dict that it returned."""
        raise NotImplementedError(
            f"{type(self).__name__} must have a method load_checkpoint(self, checkpoint) to go on from a checkpoint."
        )

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take another trial's configuration, and return whether that worked. Used if ``reuse_actors=True``."""
        return False

    def cleanup(self) -> None:
        """Release resources, when the trial ends."""

    def log_result(self, result: Mapping[str, Any]) -> None:
        """Handle the metrics of a step, after `train` has completed them."""

    def export_model(self, export_formats: list[str], export_dir: str | None = None) -> dict[str, str]:
        """Write the model in other formats. A search does not call this method."""
        raise NotImplementedError(f"{type(self).__name__} has no export_model().")

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> Any:
        """Return the resources of a trial with this configuration, as `with_resources` takes them; None for one CPU."""
        return None

    @classmethod
    def resource_help(cls, config: dict[str, Any]) -> str:
        """Return advice for a session that lacks the resources."""
        return ""

    # --- methods to call ----------------------------------------------------------------------------------------------

    def train(self) -> dict[str, Any]:
        """Do one step; return its metrics with ``training_iteration``, ``time_this_iter_s`` and ``time_total_s``."""
        before = time.monotonic()
        metrics = self.step()
        if not isinstance(metrics, dict):
            raise TypeError(
                f"step() must return a dict of metrics, but {type(self).__name__}.step returned {metrics!r}. Write "
                "return {'score': score}."
            )
        seconds = time.monotonic() - before
        self._iteration += 1
        self._seconds += seconds
        found = {
            "training_iteration": self._iteration,
            "time_this_iter_s": seconds,
            "time_total_s": self._seconds,
            DONE: False,
            **metrics,
        }
        self.log_result(found)
        return found

    def train_buffered(self, buffer_time_s: float, max_buffer_length: int = 1000) -> list[dict[str, Any]]:
        """Do steps until the time is over or `max_buffer_length` is reached; return the metrics of each."""
        deadline, found = time.monotonic() + buffer_time_s, [self.train()]
        while not found[-1][DONE] and len(found) < max_buffer_length and time.monotonic() < deadline:
            found.append(self.train())
        return found

    def save(self, checkpoint_dir: str | os.PathLike[str] | None = None) -> str:
        """Save the state into a folder, and return its path. Default: a new folder in the system's temporary folder."""
        folder = os.fspath(checkpoint_dir) if checkpoint_dir is not None else tempfile.mkdtemp(prefix="checkpoint-")
        Path(folder).mkdir(parents=True, exist_ok=True)
        state: object = self.save_checkpoint(folder)  # some methods return the folder, as Ray allows
        if isinstance(state, dict):
            blob = pickle.dumps(state, pickle.HIGHEST_PROTOCOL)
            Path(folder, _DICT_NAME).write_bytes(blob)
            Path(folder, _SIGNATURE_NAME).write_bytes(self._sign(blob))
        elif state is not None and str(state) != folder:
            raise errors.TuneError(
                f"save_checkpoint(checkpoint_dir) must write into checkpoint_dir, {folder!r}, and return None, or "
                f"return a dict, but it returned {state!r}."
            )
        told = {"iteration": self._iteration, "seconds": self._seconds}
        Path(folder, _METADATA_NAME).write_text(json.dumps(told), encoding="utf-8")
        return folder

    def restore(self, checkpoint_path: Any, *, trust: bool = False) -> None:
        """Restore the state from a checkpoint, or from a folder that `save` wrote.

        Args:
            checkpoint_path: The checkpoint or folder.
            trust: Whether to unpickle its files, which runs code, even if other users may write to the folder.

        Raises:
            UntrustedFolderError: Other users may write to the folder, and `trust` is False.
        """
        folder = os.fspath(getattr(checkpoint_path, "path", checkpoint_path))
        file = Path(folder, _DICT_NAME)
        told = Path(folder, _METADATA_NAME)
        if told.exists():
            try:
                found = json.loads(local_files.read_bytes(told))
                self._iteration, self._seconds = int(found["iteration"]), float(found["seconds"])
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
                raise errors.TuneError(f"{str(told)!r} is damaged: {error}. Use another checkpoint.") from error
        state: object = folder
        if file.exists():
            blob, signature = local_files.read_bytes(file), Path(folder, _SIGNATURE_NAME)
            if signature.is_file() and hmac.compare_digest(signature.read_bytes(), self._sign(blob)):
                trust_module.note(blob)
            state = trust_module.Opener(file, "Trainable.restore()", trust=trust).load(blob)
        self.load_checkpoint(state)

    def _sign(self, blob: bytes) -> bytes:
        """Return a signature that only this search can make; outside a search, only this process."""
        return hmac.digest(self._key, blob, "sha256")

    def stop(self) -> None:
        """End the trial: call `cleanup`."""
        self.cleanup()

    # --- the trial's place --------------------------------------------------------------------------------------------

    def take_place(
        self,
        *,
        trial_id: str,
        name: str,
        logdir: str,
        resources: Mapping[str, float],
        iteration: int,
        seconds: float,
        key: bytes = b"",
    ) -> None:
        """Set this trial's place in its search. The search calls it."""
        self._key = key or _OWN_KEY
        self._trial_id, self._trial_name, self._logdir = trial_id, name, logdir
        self._resources, self._iteration, self._seconds = resources, iteration, seconds

    @property
    def iteration(self) -> int:
        """The number of steps that the trial has done, including those before the checkpoint that it went on from."""
        return self._iteration

    @property
    def training_iteration(self) -> int:
        """`iteration`, under Ray's name."""
        return self._iteration

    @property
    def trial_id(self) -> str:
        """The trial's id; ``"default"`` outside a search."""
        return self._trial_id

    @property
    def trial_name(self) -> str:
        """The trial's name; ``"default"`` outside a search."""
        return self._trial_name

    @property
    def trial_resources(self) -> Mapping[str, float]:
        """The resources of the trial."""
        return self._resources

    @property
    def logdir(self) -> str:
        """A folder for the trial's files, created if needed; a temporary one outside a search."""
        if self._logdir is None:
            self._logdir = tempfile.mkdtemp(prefix="trial-")
        Path(self._logdir).mkdir(parents=True, exist_ok=True)
        return self._logdir

    def get_config(self) -> dict[str, Any]:
        """Return the configuration."""
        return self.config
