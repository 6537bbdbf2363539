"""The places where Keras's gradients and losses pass: in ``fit``, in a user's ``train_step``, and in a user's loop.

- `Optimizer.apply` and ``stateless_apply`` of each class. The outermost call decides: a `LossScaleOptimizer` looks for
  overflows in all ranks' gradients, and the optimizer inside it is left alone. An optimizer that steps variables of a
  prepared model averages, whether or not the model was compiled with it.
- The function that reduces the losses of a batch to one number. It is not public; tests on each backend check it. A
  loss with a mask, an ignored class or weights is a mean over other entries than rows. In a step of a prepared model it
  is multiplied by this rank's share of them. Then the ranks' mean by rows is the mean over all ranks' entries.

Both are replaced once in a process, and change nothing for models that are not prepared.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

import keras

from hocket._base.internals import keras as keras_internals
from hocket.train.frameworks.keras import framework

Share = Callable[[Any, object], Any]
"""Turns the mean over this rank's entries into its part of the mean over all ranks', given the number of entries; None
for a sum."""

_losses: Final = keras_internals.get_losses()


class Owner(Protocol):
    """The exchange of the gradients of one model's variables."""

    @property
    def takes_steps(self) -> bool:
        """Whether `take_step` is called in place of the optimizer."""

    def average(self, optimizer: object, gradients: Sequence[object]) -> Sequence[object]:
        """Return the gradients with which all ranks step."""

    def take_step(self, optimizer: object, gradients: Sequence[object], given: Sequence[object] | None) -> None:
        """Set the variables `given`, or all that the model trains, to their values after the step."""


class _Place(threading.local):
    """The step that the thread computes now."""

    is_inside: bool = False
    """Whether an optimizer steps with gradients that are averaged already."""
    share: Share | None = None
    """The function that scales a loss, if any."""
    adds_up: bool = False
    """Whether a loss without a reduction, or with a sum, is added up over the ranks."""
    depth: int = 0
    """The number of losses that the thread is in. Only the outermost is added up: its use of inner sums is unknown."""


_place: Final = _Place()
_owners: Final[weakref.WeakKeyDictionary[Any, weakref.ref[Any]]] = weakref.WeakKeyDictionary()


def own(optimizer: object, owner: Owner) -> None:
    """Have an owner exchange an optimizer's gradients. The owner must live as long as the optimizer."""
    _owners[optimizer] = weakref.ref(owner)


@contextlib.contextmanager
def share_losses(share: Share | None, *, adds_up: bool = False) -> Iterator[None]:
    """In this block, turn means into the ranks' parts of the means over all ranks; with `adds_up`, sums too."""
    before = _place.share, _place.adds_up
    _place.share, _place.adds_up = share, adds_up
    try:
        yield
    finally:
        _place.share, _place.adds_up = before


@contextlib.contextmanager
def compute_compiled() -> Iterator[None]:
    """In this block, add up over the ranks the losses that a model was compiled with, as their reductions say."""
    with share_losses(_place.share, adds_up=True):
        yield


def install() -> None:
    """Hook every method and function that is not hooked yet. There may be new classes of optimizers."""
    _hook(_find_root())
    if not hasattr(_losses.reduce_weighted_values, "__wrapped__"):
        _losses.reduce_weighted_values = _hook_reduction(_losses.reduce_weighted_values)
        _losses.Loss.__call__ = _count_depth(_losses.Loss.__call__)


# --- optimizers -------------------------------------------------------------------------------------------------------


def _find_root() -> type:
    found: type = next(cls for cls in reversed(keras.optimizers.Optimizer.__mro__) if "apply" in vars(cls))
    return found


def _hook(cls: Any) -> None:
    for name, wrap in (("apply", _wrap_apply), ("stateless_apply", _wrap_stateless)):
        method = vars(cls).get(name)
        if method is not None and not hasattr(method, "passes_gradients"):
            wrapped: Any = functools.wraps(method)(wrap(method))
            wrapped.passes_gradients = True
            setattr(cls, name, wrapped)
    for subclass in cls.__subclasses__():
        _hook(subclass)


def _wrap_apply(original: Any) -> Any:
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> object:
        gradients = list(grads)
        given = None if trainable_variables is None else list(trainable_variables)
        owner = _find_owner(self, given)
        if owner is None:
            return original(self, gradients, given)
        if owner.takes_steps:
            owner.take_step(self, gradients, given)
            return None
        with _inside():
            return original(self, owner.average(self, gradients), given)

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        apply = tf.autograph.experimental.do_not_convert(apply)
    return apply


def _wrap_stateless(original: Any) -> Any:
    def stateless_apply(self: Any, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> object:
        owner = _find_owner(self, None)
        if owner is None or owner.takes_steps:  # steps are taken in `apply`, where variables can be assigned
            return original(self, optimizer_variables, grads, trainable_variables)
        with _inside():
            return original(self, optimizer_variables, owner.average(self, list(grads)), trainable_variables)

    return stateless_apply


@contextlib.contextmanager
def _inside() -> Iterator[None]:
    _place.is_inside = True
    try:
        yield
    finally:
        _place.is_inside = False


def _get_known(optimizer: Any) -> Any:
    """Return the owner of an optimizer, or of the one inside it (`LossScaleOptimizer`); None if there is none."""
    while optimizer is not None:
        known = _owners.get(optimizer)
        if known is not None:
            return known()
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return None


def _find_owner(optimizer: Any, given: Sequence[object] | None) -> Any:
    """Return the owner that exchanges an optimizer's gradients; None if they stay here, or are exchanged already."""
    if _place.is_inside:
        return None
    owner = _get_known(optimizer)
    state = None if owner is not None else framework.FRAMEWORK.get_optional_state()
    if state is not None and state.prepared:
        stepped = {id(one) for one in (given or keras_internals.list_stepped(optimizer))}
        owners = [one.exchange for one in state.prepared if one.exchange.has_any(stepped)]
        owner = next((one for one in owners if one.is_led), owners[0] if owners else None)
        if owner is not None:
            own(optimizer, owner)
    return owner


# --- losses -----------------------------------------------------------------------------------------------------------


def _count_depth(original: Any) -> Any:
    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> object:  # noqa: N807 (the method's name)
        _place.depth += 1
        try:
            return original(self, *args, **kwargs)
        finally:
            _place.depth -= 1

    return __call__


def _hook_reduction(original: Any) -> Any:
    @functools.wraps(original)
    def reduce_weighted_values(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: Any = "sum_over_batch_size",
        dtype: Any = None,
    ) -> object:
        found = original(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
        if _place.share is None:
            return found
        if reduction in ("sum", "none", None):
            return _place.share(found, None) if _place.adds_up and _place.depth == 1 else found
        count = _count(values, sample_weight, mask, reduction)
        return found if count is None else _place.share(found, count)

    return reduce_weighted_values


def _count(values: Any, sample_weight: Any, mask: Any, reduction: str) -> object:
    """Return the divisor of a loss; None if it is proportional to the rows."""
    if not len(values.shape):  # the loss has reduced the values itself
        return None
    if reduction == "mean_with_sample_weight" and not (sample_weight is None and mask is None):
        given = None if sample_weight is None else keras.ops.convert_to_tensor(sample_weight, dtype="float32")
        return keras.ops.sum(_losses.apply_mask(given, mask, dtype="float32", reduction=reduction))
    return None if mask is None else keras.ops.sum(keras.ops.cast(mask, "float32"))
