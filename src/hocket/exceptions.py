"""Every error that Hocket raises, sorted by what the caller should do.

::

    HocketError
    ├── the request cannot be met: change the call
    │   ├── InfeasibleResourcesError (ValueError)   more than the session can ever have
    │   │   ├── TaskUnschedulableError
    │   │   └── ActorUnschedulableError
    │   ├── SerializationError (TypeError)          a value cannot travel between processes
    │   ├── ActorAlreadyExistsError (ValueError)    the name is taken
    │   ├── ActorHandleNotFoundError (ValueError)   the handle belongs to another session
    │   ├── RuntimeEnvSetupError                    the runtime environment cannot be made
    │   ├── ConnectionFailedError (ConnectionError) no cluster can be joined at the address
    │   │   ├── VersionMismatchError (RuntimeError) the cluster has another Python, Ray or Hocket
    │   │   └── AuthenticationError                 the cluster wants another token
    │   ├── MissingExtraError (ImportError)         a library that comes with an extra is not installed
    │   ├── UnsupportedPlatformError (RuntimeError) this operating system is not Linux
    │   ├── UntrustedFolderError (PermissionError)  another user may have written the pickle
    │   ├── UnsafeNameError (ValueError)            a name would lead out of its folder
    │   ├── ObjectRefStreamEndOfStreamError         the generator has no such item
    │   ├── TaskPlacementGroupRemoved               the task's placement group was removed
    │   └── ActorPlacementGroupRemoved              the actor's placement group was removed
    ├── your own code raised: read ``.cause``
    │   ├── TaskError                               also an instance of the cause's class
    │   ├── CrossLanguageError                      the task is written in another language
    │   └── UserCodeException                       a dataset, or a library, called the function that raised
    ├── you stopped the task
    │   └── TaskCancelledError
    ├── no value yet: wait longer, or look at what the value waits for
    │   ├── GetTimeoutError (TimeoutError)
    │   ├── PendingCallsLimitExceeded               the actor has as many unanswered calls as it may have
    │   └── DeadlockError                           nothing that could make the value is left
    ├── a process died: the message says which, why, where
    │   ├── WorkerCrashedError
    │   │   └── OutOfMemoryError
    │   ├── ActorError
    │   │   ├── ActorDiedError
    │   │   └── ActorUnavailableError               the actor is being built again: the next call will find it
    │   ├── ObjectLostError
    │   │   ├── OwnerDiedError
    │   │   ├── ObjectFreedError
    │   │   ├── ObjectFetchTimedOutError
    │   │   ├── ObjectReconstructionFailedError
    │   │   └── ReferenceCountingAssertionError
    │   ├── NodeDiedError
    │   ├── RpcError                                a message between machines was lost
    │   └── LocalEngineDiedError                    the whole session is gone
    ├── a store of files fails: look at the store, then try again
    │   └── StoreError (OSError)                    S3 and the like do not answer, or not as they should
    │       └── StoreAccessError (PermissionError)  the store refuses access
    ├── the machine is full: free something
    │   ├── DescriptorLimitError (OSError)          this process may not open as many descriptors as a session needs
    │   └── ObjectStoreFullError                    shared memory has no room for the object
    │       └── OutOfDiskError                      and the disk has no room for the rest
    ├── SystemError                                 our own mistake: please report it
    └── SessionClosedError (RuntimeError)           the session was shut down, or never opened

``RayError``, ``RayTaskError``, ``RayActorError``, ``RaySystemError``, ``LocalRayletDiedError`` and ``AsyncioActorExit``
are second names of the same classes: programs written for Ray catch the errors under these names. Only clusters raise
some of the classes.

All errors can be pickled, and keep their causes.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, ParamSpec, TypeVar

from hocket._base import missing as _missing
from hocket._base import texts

if TYPE_CHECKING:
    from collections.abc import Callable

E = TypeVar("E", bound=BaseException)
P = ParamSpec("P")
T = TypeVar("T")


class HocketError(Exception):
    """The root of all errors that Hocket raises by itself."""


# --- the request cannot be met ----------------------------------------------------------------------------------------


class InfeasibleResourcesError(HocketError, ValueError):
    """A request asks for more than the session can ever have. Raised at the call, never after a wait."""


class TaskUnschedulableError(InfeasibleResourcesError):
    """A task asks for more than the session can ever have."""


class ActorUnschedulableError(InfeasibleResourcesError):
    """An actor asks for more than the session can ever have."""


class SerializationError(HocketError, TypeError):
    """A value cannot travel between processes. The message names the part that cannot, and what to do instead."""


class ActorAlreadyExistsError(HocketError, ValueError):
    """A living actor already has the name."""


class ActorHandleNotFoundError(HocketError, ValueError):
    """The handle belongs to a session that is closed."""


class RuntimeEnvSetupError(HocketError):
    """The runtime environment of a task or actor cannot be made. The message says which part, and why."""


class ConnectionFailedError(HocketError, ConnectionError):
    """No cluster can be joined at the address. The message names it, and what to check."""


class VersionMismatchError(ConnectionFailedError, RuntimeError):
    """The cluster has another version of Python, Ray or Hocket. The message names both, and what to install."""


class AuthenticationError(ConnectionFailedError):
    """The cluster wants a different token from the one of this process. Clusters only."""


class MissingExtraError(HocketError, ImportError):
    """A library that comes with an extra of this package is not installed. The message has the line for pip."""


class UnsupportedPlatformError(HocketError, RuntimeError):
    """This operating system cannot run the request."""


class UntrustedFolderError(HocketError, PermissionError):
    """A pickle in a folder stays unopened, because another user may have written it. The message names that user and
    the folder, and says what to write if the user is trusted."""


class UnsafeNameError(HocketError, ValueError):
    """A name in an archive, a manifest, a log or a store would lead out of its folder. The message says which."""


class ObjectRefStreamEndOfStreamError(HocketError):
    """The reference stands behind the last item of a generator."""


class TaskPlacementGroupRemoved(HocketError):
    """The placement group in which the task was to run has been removed."""


class ActorPlacementGroupRemoved(HocketError):
    """The placement group in which the actor lived has been removed."""


# --- your own code raised ---------------------------------------------------------------------------------------------


class TaskError(HocketError):
    """A task or an actor method raised an exception.

    The error that ``get`` raises is an instance both of this class and of the class of the original exception:
    ``except ValueError`` catches a ``ValueError`` of a remote function.

    Args:
        function_name: The function or method that was running.
        traceback_str: The traceback of the worker, as text, ending in the original error.
        cause: The original exception.
    """

    function_name: str
    traceback_str: str
    cause: BaseException
    _cause_data: bytes
    """The pickle of the cause, if Python's own way cannot pickle the cause again; else empty."""

    def __init__(self, function_name: str, traceback_str: str, cause: BaseException) -> None:
        Exception.__init__(self, function_name, traceback_str, cause)  # in a dual class, super() is the user's
        self.function_name = function_name
        self.traceback_str = traceback_str
        self.cause = cause
        self._cause_data = b""

    def __reduce__(self) -> tuple[object, ...]:
        if self._cause_data:
            return _rebuild_from_data, (self.function_name, self.traceback_str, self._cause_data)
        return Exception.__reduce__(self)  # type: ignore[return-value]

    def __str__(self) -> str:
        if not self.traceback_str:  # the task was cancelled while it ran: no line of the user's code says more
            return str(self.cause)
        return f"{self.function_name} raised an exception:\n{texts.add_sources(self.traceback_str)}"

    def as_instanceof_cause(self) -> BaseException:
        """Return an error that is an instance both of `TaskError` and of the class of the cause.

        Return this error itself where no such class is possible: for a cause that is no `Exception`, for
        `StopIteration`, which would end a loop that asks for values, and for a class that forbids subclasses.
        """
        # The error gets no `__cause__`: its text holds the cause's traceback, which Python would print a second time.
        if issubclass(type(self.cause), TaskError):
            return self.cause
        try:
            return self._build_dual()
        except Exception:  # a user's class may raise anything when a class inherits from it, or makes an instance
            return self

    def _build_dual(self) -> BaseException:
        cause = self.cause
        base = _UserTaskError if _OF_USER in getattr(cause, "__dict__", ()) else TaskError
        dual_class = _build_dual_class(type(cause), base)  # type: ignore[arg-type]  # classes are hashable, others raise
        if dual_class is None:
            return self
        parts = (cause.message, cause.exceptions) if isinstance(cause, BaseExceptionGroup) else ()
        error = _make_empty(dual_class, *parts)
        TaskError.__init__(error, self.function_name, self.traceback_str, cause)  # type: ignore[arg-type]
        error._cause_data = self._cause_data  # type: ignore[attr-defined]
        _ARGS.__set__(error, _ARGS.__get__(cause))
        return error


class CrossLanguageError(HocketError):
    """A task that is written in another language failed. Clusters only."""


class UserCodeException(HocketError):
    """An error of code that a library runs for its user. An error of a function that a dataset calls is an instance of
    this class, too. Other libraries may raise it ``from`` an error."""


class _UserTaskError(TaskError, UserCodeException):
    """A `TaskError` with a cause that `mark_user_code` has marked."""


_OF_USER = "_hocket_user_code"


def mark_user_code(error: E) -> E:
    """Mark an error of a user's function: its `TaskError` will be a `UserCodeException`, too."""
    with contextlib.suppress(Exception):  # its class may have no attributes
        vars(error)[_OF_USER] = True
    return error


def raise_stored(error: BaseException) -> NoReturn:
    """Raise an error that `get` found instead of a value, without a cycle of references through this frame."""
    try:
        raise error.as_instanceof_cause() if isinstance(error, TaskError) else error
    finally:
        del error


_ARGS: Any = vars(BaseException)["args"]
"""The arguments of any exception. Read and written through here, because an exception's class may have a property
``args`` without a setter."""


def get_cause(error: BaseException) -> BaseException:
    """Return the error that a task raised: the cause of a `TaskError`, or any other error itself."""
    # Not `isinstance`, which reads `__class__`: a user's class may define that.
    cause: BaseException = error.cause if issubclass(type(error), TaskError) else error  # type: ignore[attr-defined]
    return cause


def hide_frames(error: BaseException, *also: type[BaseException]) -> None:
    """Remove the traceback of an interrupt, or of an error that this package raises, before it reaches the user.

    The caller is a function that users call, and raises the error again by a bare ``raise``, which adds no frame of
    its own. The user then sees no frame of this package; the error's text says where it came from. An error that
    passed through the user's code in this process keeps its frames.

    Args:
        error: The error. Its causes lose their frames, too.
        also: Further classes of errors, if the caller knows that this package raises them on purpose.
    """
    kinds: tuple[type[BaseException], ...] = (HocketError, KeyboardInterrupt, *also)
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and not texts.SHOWS_ALL:
        if not (isinstance(link, kinds) or texts.is_told(link) or texts.is_raised_by_us(link)):
            break
        seen.add(id(link))
        if not texts.passed_user(link):
            BaseException.with_traceback(link, None)
        link = link.__cause__


def hide_frames_of(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function that users call hide our frames. A function that takes only some microseconds calls `hide_frames`
    itself, because this wrapper adds a call."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            hide_frames(error)
            raise

    return call


def _hold(name: str) -> object:
    """Return an attribute that precedes any of that name in the cause's class, where it may be a property."""
    return property(
        lambda error: error.__dict__[name],
        lambda error, value: error.__dict__.__setitem__(name, value),
    )


class _DualError:
    """The base of dual classes: it gives access to the cause's attributes, and can be pickled."""

    # The cause's class comes last among the bases, but still before `object`. These lines keep its versions out.
    __class__ = property(type)
    __getattribute__ = object.__getattribute__
    __setattr__ = object.__setattr__
    __eq__ = object.__eq__
    __hash__ = object.__hash__
    function_name = _hold("function_name")
    traceback_str = _hold("traceback_str")
    cause = _hold("cause")
    _cause_data = _hold("_cause_data")

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") or name == "cause":
            raise AttributeError(name)
        return getattr(self.cause, name)

    def __reduce__(self) -> tuple[object, ...]:
        if self._cause_data:
            return _rebuild_dual_from_data, (self.function_name, self.traceback_str, self._cause_data)
        return _rebuild_dual_error, (self.function_name, self.traceback_str, self.cause)

    def __str__(self) -> str:
        return TaskError.__str__(self)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(texts.safe_repr, _ARGS.__get__(self)))})"


@functools.lru_cache(maxsize=256)
def _build_dual_class(cause_class: Any, base: type[TaskError]) -> type[BaseException] | None:
    """Return the class that inherits from both, or None where Python cannot lay it out."""
    if not issubclass(cause_class, Exception) or issubclass(cause_class, (StopIteration, StopAsyncIteration)):
        return None  # an interrupt or an exit is for the program that catches it; the others would end a loop
    name = f"TaskError({texts.name_class(cause_class)})"
    namespace = {"__module__": TaskError.__module__, "__qualname__": name}
    try:
        dual_class: type[BaseException] = type(name, (_DualError, base, cause_class), namespace)
        if not issubclass(cause_class, ExceptionGroup):
            _make_empty(dual_class)
    except TypeError:
        return None
    return dual_class


def _make_empty(dual_class: type[BaseException], *parts: object) -> BaseException:
    layout: Any = dual_class
    while layout.__flags__ & _IS_WRITTEN_IN_PYTHON:
        layout = layout.__base__
    # A class of two built-in classes finds the `__new__` of the first, which may refuse: only the class that determines
    # the memory layout can make the instance. And MemoryError makes only its own instances, although its subclasses and
    # those of others are laid out alike: BaseException makes the rest.
    for maker in (dual_class, layout):
        with contextlib.suppress(TypeError):
            made: BaseException = maker.__new__(dual_class, *parts)
            return made
    return BaseException.__new__(dual_class)


_IS_WRITTEN_IN_PYTHON = 1 << 9
"""The flag of a class that was made while the program ran (``Py_TPFLAGS_HEAPTYPE``)."""


def _rebuild_dual_error(function_name: str, traceback_str: str, cause: BaseException) -> BaseException:
    return TaskError(function_name, traceback_str, cause).as_instanceof_cause()


def _rebuild_from_data(function_name: str, traceback_str: str, cause_data: bytes) -> TaskError:
    error = TaskError(function_name, traceback_str, pickle.loads(cause_data))
    error._cause_data = cause_data
    return error


def _rebuild_dual_from_data(function_name: str, traceback_str: str, cause_data: bytes) -> BaseException:
    return _rebuild_from_data(function_name, traceback_str, cause_data).as_instanceof_cause()


# --- you stopped the task, or its value is not there yet --------------------------------------------------------------


class TaskCancelledError(HocketError):
    """The task was cancelled before it returned. If it had begun, the error is a `TaskError`, too."""


class GetTimeoutError(HocketError, TimeoutError):
    """The values were not there when the time-out ended. The tasks go on."""


class PendingCallsLimitExceeded(HocketError):
    """An actor's ``max_pending_calls`` is reached. Wait for some of its answers, then call again."""


class DeadlockError(HocketError):
    """Nothing that could make the value is running or can be started."""


# --- a process died ---------------------------------------------------------------------------------------------------


class Death(NamedTuple):
    """Why a process ended, as its parent saw it."""

    pid: int
    signal_number: int | None = None
    """The signal that ended it; None if it exited."""
    exit_code: int | None = None
    """The exit code; None if a signal ended it."""
    peak_rss_bytes: int = 0
    """The most memory that it ever held; 0 if unknown."""
    out_of_memory: bool = False
    """Whether the kernel's out-of-memory killer was at work when it died."""
    stderr_tail: str = ""
    """The last lines that it wrote to stderr."""
    stack: str = ""
    """The Python stack at a fatal signal, as faulthandler wrote it."""
    explanation: str = ""
    """The facts without a signal and an exit code: for example, that the process could not be started."""
    expected: bool = False
    """Whether we ended it ourselves (`kill`, `cancel(force=True)`, shutdown)."""

    def describe(self) -> str:
        """Return one sentence on the cause, followed by the evidence."""
        peak = f"; peak memory {self.peak_rss_bytes / 2**20:,.0f} MiB" if self.peak_rss_bytes else ""
        parts = [f"{self.reason()}{peak}."]
        if self.out_of_memory:
            parts.append("The kernel's out-of-memory killer ended it: use less memory, or run fewer tasks at once.")
        if self.stack:
            parts.append("Python stack when it died:\n" + _indent(self.stack))
        if self.stderr_tail:
            parts.append("Last lines of its stderr:\n" + _indent(self.stderr_tail))
        return "\n".join(parts)

    def reason(self) -> str:
        """Return the cause in a few words: ``was killed by signal 9 (SIGKILL)`` or ``exited with code 3``."""
        if self.signal_number is not None:
            return f"was killed by signal {self.signal_number} ({_name_signal(self.signal_number)})"
        if self.exit_code is not None:
            return f"exited with code {self.exit_code}"
        return self.explanation or "ended for an unknown reason"


def _name_signal(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return "unnamed"


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines())


class WorkerCrashedError(HocketError):
    """The worker died while it ran the task. ``.death`` holds the evidence (a `Death`), if there is any."""

    death: Death | None

    def __init__(self, message: str, death: Death | None = None) -> None:
        super().__init__(message, death)
        self.death = death

    def __str__(self) -> str:
        return str(self.args[0])


class OutOfMemoryError(WorkerCrashedError):
    """The kernel's out-of-memory killer ended the worker."""


class ActorError(HocketError):
    """A call on an actor could not be made, or will not return.

    Attributes:
        actor_id: The actor, in hexadecimal; empty if unknown.
        actor_init_failed: Whether the constructor raised. Its error is then the `cause`, and the message ends in its
            traceback.
        death: Why the actor's process ended (a `Death`); None if it did not end.
    """

    actor_id: str
    actor_init_failed: bool
    death: Death | None

    def __init__(
        self,
        message: str,
        *,
        actor_id: str = "",
        actor_init_failed: bool = False,
        death: Death | None = None,
        cause_data: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.actor_id = actor_id
        self.actor_init_failed = actor_init_failed
        self.death = death
        self._cause_data = cause_data

    @property
    def cause(self) -> BaseException | None:
        """The constructor's exception; None if it raised none."""
        origin = self._read_origin()
        return origin.cause if isinstance(origin, TaskError) else origin

    def __str__(self) -> str:
        origin = self._read_origin()
        if origin is None:
            return super().__str__()
        story = origin.traceback_str if isinstance(origin, TaskError) else texts.describe(origin)
        return f"{super().__str__()}\n{story}"

    def _read_origin(self) -> BaseException | None:
        """Return the constructor's error; None if there is none."""
        # Unpickled only when somebody looks: unpickling may import the user's modules.
        if not self._cause_data:
            return None
        try:
            origin: BaseException = pickle.loads(self._cause_data)
        except Exception as error:  # a user's exception may raise anything when it is made
            return HocketError(f"The exception of the constructor cannot be read here: {texts.describe(error)}")
        return origin

    def __reduce__(self) -> tuple[object, ...]:
        rebuild = functools.partial(
            type(self),
            actor_id=self.actor_id,
            actor_init_failed=self.actor_init_failed,
            death=self.death,
            cause_data=self._cause_data,
        )
        return rebuild, self.args


class ActorDiedError(ActorError):
    """The actor is dead and will not come back."""


class ActorUnavailableError(ActorError):
    """The actor's process died and is being built again; the call may have run, wholly or in part."""


class ObjectLostError(HocketError):
    """The value is gone, and nothing can make it again."""


class OwnerDiedError(ObjectLostError):
    """The process that was to make the value died before it did."""


class ObjectFreedError(ObjectLostError):
    """The value was freed by hand."""


class ObjectFetchTimedOutError(ObjectLostError):
    """The value could not be fetched from another machine in time. Clusters only."""


class ObjectReconstructionFailedError(ObjectLostError):
    """The task that made the value could not be run again. Clusters only."""


class ReferenceCountingAssertionError(ObjectLostError):
    """The value was freed although something still referred to it. Clusters only."""


class NodeDiedError(HocketError):
    """The machine that ran the task is gone. Clusters only."""


class RpcError(HocketError):
    """A message between machines was lost. Clusters only."""


class LocalEngineDiedError(HocketError):
    """The process that looks after the workers died; the session is over."""


# --- the machine is full, or the session closed -----------------------------------------------------------------------


class StoreError(HocketError, OSError):
    """A store of files, such as S3, failed at a request and at its repetition. The message says which store, what it
    was to do, and why it failed."""


class StoreAccessError(StoreError, PermissionError):
    """A store of files refuses access: the credentials are wrong, or do not permit the request."""


class DescriptorLimitError(HocketError, OSError):
    """This process may not open as many descriptors as a session needs. The message gives the limit, and the command
    or setting that raises it."""


class ObjectStoreFullError(HocketError):
    """There is no room for the object. The message gives its size, the free memory, and the source lines that made the
    largest objects."""


class OutOfDiskError(ObjectStoreFullError):
    """Memory is at its limit, and the disk cannot take the rest."""


class SystemError(HocketError):  # qualified by its module; Ray's name is RaySystemError
    """Something happened that never should. Please report it, with the output of ``hocket doctor``."""


class SessionClosedError(HocketError, RuntimeError):
    """The session was shut down, or the reference belongs to an earlier session."""


# --- second names, for programs written for Ray -----------------------------------------------------------------------

RayError = HocketError
RayTaskError = TaskError
RayActorError = ActorError
RaySystemError = SystemError
LocalRayletDiedError = LocalEngineDiedError


class ActorExit(BaseException):
    """The exception by which `exit_actor` leaves the calling method. ``except Exception`` does not catch it."""


AsyncioActorExit = ActorExit


class ErrorRecord(NamedTuple):
    """One failure, as `hocket.error_info` lists it."""

    task_id: str
    name: str
    """The function or the method."""
    error_type: str
    message: str
    timestamp: float
    """Seconds since the epoch."""


_missing.explain(__name__)
