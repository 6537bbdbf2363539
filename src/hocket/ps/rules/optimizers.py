"""Optimizers: the rules by which servers turn gradients into new values.

Each optimizer is a rule for one element. From the element's value, gradient and *slots* (momentum, sums of squares) it
computes the new value and the new slots. So one loop serves a variable, a shard, and rows gathered from a table.

**The cost is memory's.** A push of a million floats reads and writes some 12 MB (SGD) to 28 MB (Adam). A numpy call
over the whole arrays would move as much again for each operation. Therefore `Optimizer.apply` works in blocks that stay
in the cache, with scratch arrays that each thread makes once.

Measured for a million floats in place, where adding two arrays takes 0.48 ms: SGD 0.41 ms, with momentum 0.71, Adagrad
1.3, Adam 1.9, FTRL 2.3. Writing into other arrays takes up to half as much more. Ten floats take 8 to 18 microseconds.

**Rows are lazy.** `Optimizer.apply_rows` changes only the rows of its arguments, like TensorFlow's sparse updates and
``torch.optim.SparseAdam``. A row that is not pushed keeps its value and its slots: momentum does not move it, its
averages do not decay, and weight decay does not touch it.

NaN and infinity are not checked here, and spread as in any arithmetic, without a warning. Callers decide earlier
whether to drop a push that holds them.
"""

from __future__ import annotations

import abc
import functools
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import numpy as np
import numpy.typing as npt

from hocket import keywords
from hocket.ps import checks

Array: TypeAlias = npt.NDArray[np.floating[Any]]

BLOCK: Final = 32768
"""Number of elements processed at once. Measured for a million floats, on a core with 48 KiB and 2 MiB of cache: 65,536
gains 5 %, which a core with half the cache would lose; 16,384 takes a quarter longer, because each numpy call costs
half a microsecond; all at once takes half as long again."""

_TINY: Final = 1.2e-38
"""The least epsilon: a smaller one is 0 as a float32, and without gradients elements become 0 / 0. See `_fit_eps`."""

_ALIASES: Final = {"learning_rate": "lr", "beta_1": "beta1", "beta_2": "beta2", "epsilon": "eps"}
"""Keras's names for the arguments, for messages."""


class Optimizer(abc.ABC):
    """A rule that makes new values from old ones and a gradient.

    It is immutable, holds no arrays and can be pickled: the caller owns variables, slots and the number of the step.
    Any number of threads may call one optimizer at once, for arrays that do not overlap.

    There are four optimizers: `SGD`, `Adagrad`, `Adam` and `FTRL`.
    """

    lr: float
    slots: tuple[str, ...]
    """The names of the slots. A slot has the variable's shape and dtype, a float type."""
    _initials: dict[str, float]

    def _finish(self, weights: Sequence[str], **initials: float) -> None:
        """Check the learning rate and the fields `weights`; set the slots' names and initial values."""
        _set(self, "lr", _require_lr(self.lr))
        for name in weights:
            _set(self, name, _require_weight(name, getattr(self, name)))
        object.__setattr__(self, "slots", tuple(initials))
        object.__setattr__(self, "_initials", {name: float(value) for name, value in initials.items()})

    @final
    def slot_initial(self, name: str) -> float:
        """Return the initial value of a slot's elements.

        Raises:
            ValueError: The optimizer has no such slot.
        """
        if name not in self.slots:
            kept = ", ".join(self.slots) or "none"
            raise ValueError(f"{self!r} has no slot {name!r}. Its slots: {kept}.")
        return self._initials[name]

    @abc.abstractmethod
    def _update(self, block: _Block, step: int, scale: float) -> None:
        """Write the new values and slots of one block.

        Outputs may share memory with the old values and slots, so nothing may be read after it was written. The
        gradient stays unchanged, and so do old values and slots in separate arrays."""

    @final
    def apply(
        self,
        value: Array,
        slots: Sequence[Array],
        gradient: Array,
        step: int,
        out: Array,
        out_slots: Sequence[Array],
        scale: float = 1.0,
    ) -> None:
        """Write a variable's new values and slots.

        Args:
            value: The old values. This and all other arrays are flat, contiguous, and of one length and dtype.
            slots: The old slots, in the order of `slots`.
            gradient: The gradient. It is not changed.
            step: The number of this update, 1 for the first.
            out: Receives the new values: `value` itself, or an array that does not overlap it.
            out_slots: Receive the new slots: the arrays of `slots`, or others.
            scale: The factor of the learning rate, for this update.

        Example:
            >>> import numpy as np
            >>> from hocket import ps
            >>> value, gradient = np.array([1.0, 2.0], np.float32), np.array([0.5, -1.0], np.float32)
            >>> ps.SGD(lr=0.5).apply(value, [], gradient, 1, value, [])
            >>> value.tolist()
            [0.75, 2.5]
        """
        assert step >= 1, step
        assert len(slots) == len(out_slots) == len(self.slots), (len(slots), len(out_slots), self.slots)
        arrays = (value, gradient, out, *slots, *out_slots)
        assert all(a.shape == (value.size,) and a.dtype == value.dtype for a in arrays), [
            (a.shape, a.dtype) for a in arrays
        ]
        with np.errstate(all="ignore"):
            for start in range(0, value.size, BLOCK):
                part = slice(start, start + BLOCK)
                block = _Block(
                    value[part], [a[part] for a in slots], gradient[part], out[part], [a[part] for a in out_slots]
                )
                self._update(block, step, scale)

    @final
    def apply_rows(self, rows: Array, slots: Sequence[Array], gradient: Array, step: int, scale: float = 1.0) -> None:
        """Change rows of a table, and their slots, in place. Other rows do not change.

        Args:
            rows: Copies of the rows, each row once: contiguous, [number of rows, columns].
            slots: The same rows of each slot, in the order of `slots`.
            gradient: The rows' gradients.
            step: The number of this update of the table, 1 for the first. The table, not each row, counts updates, as
                in ``torch.optim.SparseAdam``.
            scale: The factor of the learning rate, for this update.

        Example:
            >>> import numpy as np
            >>> from hocket import ps
            >>> table, ids = np.zeros([4, 2], np.float32), np.array([1, 3])
            >>> rows = table[ids]
            >>> ps.SGD(lr=0.5).apply_rows(rows, [], np.ones([2, 2], np.float32), step=1)
            >>> table[ids] = rows
            >>> table.tolist()
            [[0.0, 0.0], [-0.5, -0.5], [0.0, 0.0], [-0.5, -0.5]]
        """
        assert all(a.flags.c_contiguous for a in (rows, *slots)), "a copy would be changed in their place"
        flat = [slot.reshape(-1) for slot in slots]
        self.apply(rows.reshape(-1), flat, gradient.reshape(-1), step, rows.reshape(-1), flat, scale)


@final
@keywords.explained(aliases=_ALIASES)
@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Steps along the gradient, optionally with momentum: ``torch.optim.SGD``. With momentum, its slot is ``momentum``.

    Args:
        lr: The learning rate.
        momentum: The part of the last step's direction that is kept. 0 keeps nothing, and needs no slot.
        nesterov: Whether the step looks ahead along the momentum.
        weight_decay: The multiple of the value that is added to the gradient.

    Raises:
        ValueError: A number is out of its range, or `nesterov` is set without momentum.

    Example:
        >>> from hocket import ps
        >>> ps.SGD(lr=0.1, momentum=0.9).slots
        ('momentum',)
    """

    lr: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _set(self, "momentum", _require_decay("momentum", self.momentum, "Leave it out for none; 0.9 is usual."))
        self._finish(["weight_decay"], **({"momentum": 0.0} if self.momentum else {}))
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov=True needs momentum, but received momentum=0.0. Give momentum=0.9, say.")

    def _update(self, block: _Block, step: int, scale: float) -> None:
        (work,) = _take_scratch(block, 1)
        gradient, rate = block.gradient, self.lr * scale
        if not self.momentum:
            if self.weight_decay:
                np.multiply(block.value, rate * self.weight_decay, out=work)
                np.subtract(block.value, work, out=block.out)
                np.multiply(gradient, rate, out=work)
                np.subtract(block.out, work, out=block.out)
                return
            np.multiply(gradient, rate, out=work)
            np.subtract(block.value, work, out=block.out)
            return
        if self.weight_decay:
            gradient = _decay(block, self.weight_decay, work)
        (momentum,), (new,) = block.slots, block.out_slots
        np.multiply(momentum, self.momentum, out=new)
        np.add(new, gradient, out=new)
        if self.nesterov:
            (ahead,) = _take_scratch(block, 2)[1:]
            np.multiply(new, self.momentum, out=ahead)
            np.add(ahead, gradient, out=ahead)
            np.multiply(ahead, rate, out=work)
        else:
            np.multiply(new, rate, out=work)
        np.subtract(block.value, work, out=block.out)


@final
@keywords.explained(aliases=_ALIASES)
@dataclass(frozen=True, kw_only=True)
class Adagrad(Optimizer):
    """Steps divided by the root of the sum of all squared gradients: J. Duchi, E. Hazan and Y. Singer, "Adaptive
    Subgradient Methods for Online Learning and Stochastic Optimization" (JMLR 12, 2011), the diagonal form, as
    ``torch.optim.Adagrad`` computes it. Its slot is the ``sum`` of squared gradients.

    Args:
        lr: The learning rate.
        initial_accumulator: The initial value of the sums. 0 as in PyTorch and the paper; TensorFlow has 0.1, which
            makes the first steps smaller.
        eps: The number added to the root. 1e-10 as in PyTorch; TensorFlow adds 1e-7 under the root.
        weight_decay: The multiple of the value that is added to the gradient.

    Raises:
        ValueError: A number is out of its range.

    Example:
        >>> from hocket import ps
        >>> ps.Adagrad(lr=0.1, initial_accumulator=0.1).slot_initial("sum")
        0.1
    """

    lr: float
    initial_accumulator: float = 0.0
    eps: float = 1e-10
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _set(self, "eps", _require_eps(self.eps, "1e-10"))
        self._finish(["initial_accumulator", "weight_decay"], sum=self.initial_accumulator)

    def _update(self, block: _Block, step: int, scale: float) -> None:
        work, decayed = _take_scratch(block, 2)
        gradient = block.gradient
        if self.weight_decay:
            gradient = _decay(block, self.weight_decay, decayed)
        (total,), (new,) = block.slots, block.out_slots
        np.multiply(gradient, gradient, out=work)
        np.add(total, work, out=new)
        np.sqrt(new, out=work)
        np.add(work, _fit_eps(self.eps, work.dtype), out=work)
        np.divide(gradient, work, out=work)
        np.multiply(work, self.lr * scale, out=work)
        np.subtract(block.value, work, out=block.out)


@final
@keywords.explained(aliases=_ALIASES)
@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Steps along an average gradient, divided by the root of an average square: D. Kingma and J. Ba, "Adam: A Method
    for Stochastic Optimization" (ICLR 2015), algorithm 1, with both averages corrected for their start at 0. Its slots
    are the ``average`` of gradients, and of their ``square``: m and v in the paper.

    Args:
        lr: The learning rate.
        beta1: The part of the average gradient that is kept. This default and the next two are the paper's.
        beta2: The part of the average square that is kept.
        eps: The number added to the root.
        weight_decay: The multiple of the value that is added to the gradient or, if `decoupled`, taken off the value.
        is_eps_hat: Whether `eps` is added before the root is corrected, as in TensorFlow and Keras: the paper's
            "epsilon hat". Otherwise it is added after the correction, as in PyTorch.
        decoupled: False for ``torch.optim.Adam``. True for AdamW, where decay does not pass through the averages: I.
            Loshchilov and F. Hutter, "Decoupled Weight Decay Regularization" (ICLR 2019), with the decay multiplied by
            the learning rate as in PyTorch and Keras.

    Raises:
        ValueError: A number is out of its range.

    Example:
        >>> from hocket import ps
        >>> ps.Adam(lr=1e-3, weight_decay=0.01, decoupled=True).slots
        ('average', 'square')
    """

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    is_eps_hat: bool = False

    def __post_init__(self) -> None:
        _set(self, "beta1", _require_decay("beta1", self.beta1, "Leave it out for 0.9."))
        _set(self, "beta2", _require_decay("beta2", self.beta2, "Leave it out for 0.999."))
        _set(self, "eps", _require_eps(self.eps, "1e-8"))
        self._finish(["weight_decay"], average=0.0, square=0.0)

    def _update(self, block: _Block, step: int, scale: float) -> None:
        work, decayed = _take_scratch(block, 2)
        gradient, rate = block.gradient, self.lr * scale
        if self.weight_decay and not self.decoupled:
            gradient = _decay(block, self.weight_decay, decayed)
        (average, square), (new_average, new_square) = block.slots, block.out_slots
        np.multiply(gradient, 1 - self.beta1, out=work)
        np.multiply(average, self.beta1, out=new_average)
        np.add(new_average, work, out=new_average)
        np.multiply(gradient, gradient, out=work)
        np.multiply(work, 1 - self.beta2, out=work)
        np.multiply(square, self.beta2, out=new_square)
        np.add(new_square, work, out=new_square)
        # m / b1 / (sqrt(v / b2) + eps) = root / b1 * m / (sqrt(v) + root * eps), with one pass less.
        root = (1 - self.beta2**step) ** 0.5
        np.sqrt(new_square, out=work)
        np.add(work, _fit_eps(self.eps if self.is_eps_hat else root * self.eps, work.dtype), out=work)
        np.divide(new_average, work, out=work)
        np.multiply(work, rate * root / (1 - self.beta1**step), out=work)
        if self.weight_decay and self.decoupled:
            np.multiply(block.value, rate * self.weight_decay, out=decayed)
            np.add(work, decayed, out=work)
        np.subtract(block.value, work, out=block.out)


@final
@keywords.explained(aliases=_ALIASES)
@dataclass(frozen=True, kw_only=True)
class FTRL(Optimizer):
    """Follow the regularised leader: H. B. McMahan et al., "Ad Click Prediction: a View from the Trenches" (KDD 2013),
    algorithm 1, with the power that TensorFlow adds. Steps are Adagrad's, but an element whose evidence is weaker than
    `l1` is exactly 0. Its slots are the ``sum`` of squared gradients, and ``linear``: n and z in the paper.

    A value is computed from its slots, and its initial value is lost at the first update: begin with zeros.

    Args:
        lr: The learning rate; alpha in the paper.
        lr_power: Minus the power of the sum of squares that divides the step; 0 for equal steps. -0.5 is the paper's.
        initial_accumulator: The initial value of the sums of squares. 0.1 as in TensorFlow; the paper has 0.
        l1: The evidence that an element needs for a value other than 0.
        l2: The strength of the pull of values towards 0, as in TensorFlow: twice this number is added to the divisor.
        beta: The number added to the power of the sum, as in the paper; 0 as in TensorFlow.

    Raises:
        ValueError: A number is out of its range, or `initial_accumulator`, `l2` and `beta` are all 0.

    Note:
        A step's `scale` multiplies the gradient where it moves the value. It does not change the sum of squares, or
        `lr` in the formula: without regularisation that is a step with the learning rate scaled. TensorFlow puts a
        changed `lr` into the formula, which also rescales each value.

    Example:
        >>> from hocket import ps
        >>> ps.FTRL(lr=0.1, l1=0.01).slots
        ('sum', 'linear')
    """

    lr: float
    lr_power: float = -0.5
    initial_accumulator: float = 0.1
    l1: float = 0.0
    l2: float = 0.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        rule, remedy = "must be a finite number of at most 0", "Leave it out for -0.5, the paper's."
        power = checks.require_number(
            "lr_power", self.lr_power, rule, remedy, low=-math.inf, open_low=True, high=math.nextafter(0, 1)
        )
        _set(self, "lr_power", power)
        self._finish(["initial_accumulator", "l1", "l2", "beta"], sum=self.initial_accumulator, linear=0.0)
        if not (self.initial_accumulator or self.l2 or self.beta):
            raise ValueError(
                "initial_accumulator, l2 and beta are all 0, and one must be above 0: where a gradient is 0, a value "
                "would be 0 / 0. Give beta=1.0, as the paper does, or initial_accumulator=0.1, as TensorFlow does."
            )

    def _update(self, block: _Block, step: int, scale: float) -> None:
        before, after = _take_scratch(block, 2)
        (total, linear), (new_total, new_linear) = block.slots, block.out_slots
        self._raise_to_power(total, before)
        np.multiply(block.gradient, block.gradient, out=after)
        np.add(total, after, out=new_total)
        self._raise_to_power(new_total, after)
        # The new z of the paper: the old z, plus the gradient, minus sigma times the value.
        np.subtract(after, before, out=before)
        np.multiply(before, 1 / self.lr, out=before)
        np.multiply(before, block.value, out=before)
        np.subtract(linear, before, out=new_linear)
        if scale != 1.0:
            np.multiply(block.gradient, scale, out=before)
            np.add(new_linear, before, out=new_linear)
        else:
            np.add(new_linear, block.gradient, out=new_linear)
        # The value is minus z, moved towards 0 by l1, divided by the inverse of the rate plus l2's share.
        np.multiply(after, 1 / self.lr, out=after)
        np.add(after, self.beta / self.lr + 2 * self.l2, out=after)
        if self.l1:
            np.clip(new_linear, -self.l1, self.l1, out=before)
            np.subtract(before, new_linear, out=before)
        else:
            np.negative(new_linear, out=before)
        np.divide(before, after, out=block.out)

    def _raise_to_power(self, total: Array, out: Array) -> None:
        if self.lr_power == -0.5:
            np.sqrt(total, out=out)
        else:
            np.power(total, -self.lr_power, out=out)


# ---------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Block:
    """A part of the arguments of `Optimizer.apply`, short enough for the cache."""

    value: Array
    slots: list[Array]
    gradient: Array
    out: Array
    out_slots: list[Array]


class _Scratch(threading.local):
    """Each thread's own arrays for intermediate results."""

    def __init__(self) -> None:
        self.arrays: dict[np.dtype[Any], list[Array]] = {}


_scratch = _Scratch()


def _take_scratch(block: _Block, count: int) -> list[Array]:
    """Return arrays of the block's length and dtype, with undefined contents. Repeated calls in a
    thread return the same arrays, in the same order."""
    dtype, length = block.value.dtype, block.value.size
    arrays = _scratch.arrays.setdefault(dtype, [])
    while len(arrays) < count:
        arrays.append(np.empty(BLOCK, dtype))
    return [array[:length] for array in arrays[:count]]


def _fit_eps(eps: float, dtype: np.dtype[Any]) -> float:
    """Return an epsilon that is not 0 in a dtype: float16 has no number between 0 and 6e-8, and few bits below 6e-5."""
    return max(eps, _find_least(dtype))


@functools.lru_cache
def _find_least(dtype: np.dtype[Any]) -> float:
    return max(_TINY, float(np.finfo(dtype).tiny))


def _set(optimizer: Optimizer, name: str, value: float) -> None:
    """Set a field of a frozen optimizer during its construction. A float, because numpy scalars would widen float32."""
    object.__setattr__(optimizer, name, value)


def _decay(block: _Block, weight: float, work: Array) -> Array:
    """Return the gradient plus `weight` times the value."""
    np.multiply(block.value, weight, out=work)
    decayed: Array = np.add(block.gradient, work, out=work)
    return decayed


def _require_lr(value: object) -> float:
    return checks.require_number("lr", value, "must be a finite number above 0", "Give lr=0.01, say.", open_low=True)


def _require_decay(name: str, value: object, remedy: str) -> float:
    return checks.require_number(name, value, "must be from 0 to less than 1", remedy, high=1)


def _require_weight(name: str, value: object) -> float:
    return checks.require_number(name, value, "must be a finite number from 0", "Leave it out for the default.")


def _require_eps(value: object, default: str) -> float:
    rule = f"must be a finite number from {_TINY:g}, the least that float32 can hold"
    return checks.require_number("eps", value, rule, f"Leave it out for {default}.", low=_TINY)
