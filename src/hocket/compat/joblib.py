"""joblib's ``Parallel`` on Hocket's workers, which scikit-learn uses, too.

joblib is no dependency of Hocket: only this module needs it, and no other module imports this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

from hocket import extras
from hocket.compat import multiprocessing
from hocket.core import session

with extras.explain("hocket.util.joblib", "joblib", "Run pip install joblib; it also comes with scikit-learn."):
    from joblib import parallel


def register_hocket() -> None:
    """Register ``"hocket"`` as a backend of joblib.

    Example:
        >>> import joblib
        >>> from hocket.util.joblib import register_hocket
        >>> register_hocket()
        >>> with joblib.parallel_backend("hocket", n_jobs=2):
        ...     joblib.Parallel()(joblib.delayed(abs)(-x) for x in range(3))
        [0, 1, 2]
    """
    parallel.register_parallel_backend("hocket", Backend)


def register_ray() -> None:
    """Register ``"ray"`` as a second name of the backend, for programs written for Ray."""
    register_hocket()
    parallel.register_parallel_backend("ray", Backend)


@final
class Outcome:
    """The outcome of a joblib batch. joblib passes it back to the backend before it reads it."""

    __slots__ = ("error", "value")

    def __init__(self, value: object, error: BaseException | None) -> None:
        self.value = value
        self.error = error


@final
class Backend(parallel.AutoBatchingMixin, parallel.ParallelBackendBase):  # type: ignore[misc]
    """A joblib backend that runs batches.

    Args:
        nesting_level: joblib's count of the ``Parallel`` calls around this one.
        inner_max_num_threads: joblib refuses it for backends that do not limit threads, such as this one.
        ray_remote_args: Options of the processes' actors, as for `hocket.util.multiprocessing.Pool`.
    """

    supports_retrieve_callback = True
    supports_return_generator = True

    def __init__(
        self,
        nesting_level: int | None = None,
        inner_max_num_threads: int | None = None,
        ray_remote_args: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads)
        self._remote_args = dict(ray_remote_args or {})
        self._pool: multiprocessing.Pool | None = None

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return the number of processes for a request; -1 requests all CPUs of the session."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning. Use -1 for all CPUs of the session.")
        if n_jobs is None:
            return 1
        if n_jobs > 0:
            return n_jobs
        return max(1, int(session.get_engine().resources.get_total_resources().get("CPU", 1)) + 1 + n_jobs)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **ignored: Any) -> int:
        """Start the processes, and return their number."""
        n_jobs = self.effective_n_jobs(n_jobs)
        if n_jobs == 1:
            raise _fall_back(self.nesting_level)
        self._pool = multiprocessing.Pool(n_jobs, ray_remote_args=self._remote_args)
        self.parallel = parallel
        return n_jobs

    def submit(self, func: Callable[[], object], callback: Callable[[Any], object] | None = None) -> Any:
        """Run a batch; `callback` receives the outcome."""
        assert self._pool is not None
        tell = callback or (lambda outcome: None)
        # The batch is an argument because it holds the data: the function stays the same small one for each call.
        return self._pool.apply_async(
            _run_batch,
            (func,),
            callback=lambda value: tell(Outcome(value, None)),
            error_callback=lambda error: tell(Outcome(None, error)),
        )

    def retrieve_result_callback(self, out: Outcome) -> Any:
        """Return a batch's result, or raise its error."""
        if out.error is not None:
            raise out.error
        return out.value

    def terminate(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.terminate()
            self._pool = None
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """End the processes after a failure; start new ones if more work may come."""
        self.terminate()
        if ensure_ready:
            self.configure(n_jobs=self.parallel.n_jobs, parallel=self.parallel)


def _run_batch(batch: Callable[[], object]) -> object:
    return batch()


def _fall_back(nesting_level: int | None) -> BaseException:
    """Return joblib's request to fall back to one process, without this backend."""
    backend = parallel.SequentialBackend(nesting_level=nesting_level)
    error: BaseException = parallel.FallbackToBackend(backend)
    return error
