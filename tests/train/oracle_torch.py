"""Every optimizer of PyTorch on random small models: in ranks by way of a trainer, and in one process without one.

`take_steps` is what all of them call, so the two differ in who computes the gradients and in what happens to them, and
in nothing else.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch.optim import lr_scheduler

from hocket import train
from hocket.train import strategies
from hocket.train import torch as hocket_torch

Weights = dict[str, Any]
Make = Callable[..., torch.optim.Optimizer]

STEPS: Final = 7
ROWS: Final = 4
"""Of a batch of one rank."""
IDS: Final = 12
"""Rows of a table. A step names some of them, several of them twice, and leaves others out."""


# --- models -----------------------------------------------------------------------------------------------------------


class Tower(torch.nn.Module):
    """Some layers, with a table in front of them or without."""

    def __init__(self, seed: int, table: str | None) -> None:
        super().__init__()
        draw = random.Random(seed)
        torch.manual_seed(seed)
        width, self.given = draw.randint(2, 5), draw.randint(2, 5)
        self.table = None if table is None else torch.nn.Embedding(IDS, width, sparse=table == "sparse")
        layers: list[torch.nn.Module] = []
        size = self.given if table is None else width
        for _ in range(draw.randint(1, 2)):
            wide = draw.randint(3, 7)
            layers += [torch.nn.Linear(size, wide, bias=draw.random() < 0.7), torch.nn.Tanh()]
            if draw.random() < 0.5:
                layers.append(torch.nn.LayerNorm(wide))
            size = wide
        self.layers = torch.nn.Sequential(*layers, torch.nn.Linear(size, draw.randint(1, 3)))
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x if self.table is None else self.table(x).mean(1))
        return found


def make_batch(model: Tower, seed: int, step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(10_000 * seed + 10 * step + rank)
    last: Any = model.layers[-1]
    goal = torch.randn((ROWS, last.out_features), generator=generator, dtype=torch.float64)
    if model.table is not None:
        return torch.randint(0, IDS, (ROWS, 2), generator=generator), goal
    return torch.randn((ROWS, model.given), generator=generator, dtype=torch.float64), goal


# --- cases ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way to train one model."""

    optimize: Mapping[str, Make]
    """What makes an optimizer, by which parameters it gets: ``all``, ``matrices`` and the ``rest``, or the ``table``
    and the ``layers``."""
    table: str | None = None
    """``sparse`` or ``dense``."""
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None
    clip: Callable[[Iterable[torch.Tensor]], Any] | None = None
    batches_a_step: int = 1
    has_closure: bool = False
    seed: int = 0


def split(model: torch.nn.Module, groups: Iterable[str]) -> dict[str, list[Any]]:
    """Return the parameters of the groups of a case."""
    named = [(name.removeprefix("module."), parameter) for name, parameter in model.named_parameters()]
    chosen: dict[str, Callable[[str, torch.Tensor], bool]] = {
        "all": lambda name, parameter: True,
        "matrices": lambda name, parameter: parameter.ndim == 2,
        "rest": lambda name, parameter: parameter.ndim != 2,
        "table": lambda name, parameter: name.startswith("table"),
        "layers": lambda name, parameter: not name.startswith("table"),
    }
    return {group: [parameter for name, parameter in named if chosen[group](name, parameter)] for group in groups}


def two_groups(parameters: Any) -> torch.optim.Optimizer:
    half = len(parameters) // 2
    return torch.optim.AdamW(
        [
            {"params": parameters[:half], "lr": 0.02, "weight_decay": 0.3},
            {"params": parameters[half:], "betas": (0.8, 0.9)},
        ],
        lr=0.05,
    )


def of(name: str, **given: Any) -> Make:
    return functools.partial(getattr(torch.optim, name), **given)


ANY: Final[Mapping[str, Make]] = {
    "sgd": of("SGD", lr=0.1),
    "sgd momentum": of("SGD", lr=0.05, momentum=0.9),
    "sgd nesterov decay": of("SGD", lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd decay": of("SGD", lr=0.1, weight_decay=0.2),
    "adam": of("Adam", lr=0.05),
    "adam decay": of("Adam", lr=0.05, betas=(0.8, 0.9), eps=1e-4, weight_decay=0.1),
    "adam fused": of("Adam", lr=0.05, fused=True),
    "adamw": of("AdamW", lr=0.05, weight_decay=0.2),
    "adagrad": of("Adagrad", lr=0.1),
    "adagrad decay": of("Adagrad", lr=0.1, initial_accumulator_value=0.1, eps=1e-3, weight_decay=0.1),
    "groups": two_groups,
}
"""What servers apply, too."""

LOCAL: Final[Mapping[str, Make]] = {
    "sgd dampening": of("SGD", lr=0.1, momentum=0.9, dampening=0.5),
    "sgd maximize": of("SGD", lr=0.01, maximize=True),
    "adam amsgrad": of("Adam", lr=0.05, amsgrad=True),
    "adamw amsgrad": of("AdamW", lr=0.05, amsgrad=True, foreach=True),
    "adagrad lr_decay": of("Adagrad", lr=0.1, lr_decay=0.1),
    "rmsprop": of("RMSprop", lr=0.02),
    "rmsprop centered": of("RMSprop", lr=0.02, alpha=0.9, momentum=0.9, centered=True, weight_decay=0.1),
    "adadelta": of("Adadelta", lr=1.0),
    "adamax": of("Adamax", lr=0.05),
    "nadam": of("NAdam", lr=0.05, weight_decay=0.1, decoupled_weight_decay=True),
    "radam": of("RAdam", lr=0.05, betas=(0.8, 0.9)),
    "asgd": of("ASGD", lr=0.05, t0=2),
    "rprop": of("Rprop", lr=0.02),
    "adafactor": of("Adafactor", lr=0.05),
}
"""What servers refuse, with the words that it is refused with."""

REFUSED_BY_SERVERS: Final[Mapping[str, str]] = {
    "sgd dampening": "have no SGD(dampening=0.5). Leave dampening out",
    "sgd maximize": "have no SGD(maximize=True). Leave maximize out",
    "adam amsgrad": "have no Adam(amsgrad=True). Leave amsgrad out",
    "adamw amsgrad": "have no AdamW(amsgrad=True). Leave amsgrad out",
    "adagrad lr_decay": "have no Adagrad(lr_decay=0.1). Leave lr_decay out",
    **{
        name: f"have no {kind}. Use one of torch.optim: SGD, Adam, AdamW, Adagrad, SparseAdam."
        for name, kind in {
            "rmsprop": "RMSprop",
            "rmsprop centered": "RMSprop",
            "adadelta": "Adadelta",
            "adamax": "Adamax",
            "nadam": "NAdam",
            "radam": "RAdam",
            "asgd": "ASGD",
            "rprop": "Rprop",
            "adafactor": "Adafactor",
            "muon": "Muon",
            "lbfgs": "LBFGS",
            "lbfgs search": "LBFGS",
        }.items()
    },
}

SPECIAL: Final[Mapping[str, Case]] = {
    "muon": Case(optimize={"matrices": of("Muon", lr=0.05, weight_decay=0.1), "rest": of("AdamW", lr=0.05)}),
    "lbfgs": Case(optimize={"all": of("LBFGS", lr=0.1, max_iter=3)}, has_closure=True),
    "lbfgs search": Case(optimize={"all": of("LBFGS", max_iter=3, line_search_fn="strong_wolfe")}, has_closure=True),
}

VARIANTS: Final[Mapping[str, Case]] = {
    "StepLR": Case(optimize={"all": ANY["sgd momentum"]}, schedule=lambda one: lr_scheduler.StepLR(one, 2, 0.5)),
    "OneCycleLR": Case(
        optimize={"all": ANY["adam"]},
        schedule=lambda one: lr_scheduler.OneCycleLR(one, 0.1, total_steps=STEPS + 1, cycle_momentum=False),
    ),
    "LambdaLR with groups": Case(
        optimize={"all": two_groups},
        schedule=lambda one: lr_scheduler.LambdaLR(one, [lambda n: 1 / (n + 1), lambda n: 0.9**n]),
    ),
    "clip norm": Case(optimize={"all": ANY["adam"]}, clip=lambda given: torch.nn.utils.clip_grad_norm_(given, 0.1)),
    "clip value": Case(optimize={"all": ANY["sgd"]}, clip=lambda given: torch.nn.utils.clip_grad_value_(given, 0.05)),
    "accumulated": Case(optimize={"all": ANY["adamw"]}, batches_a_step=3),
    "closure": Case(optimize={"all": ANY["sgd nesterov decay"]}, has_closure=True),
}

SPARSE: Final[Mapping[str, Case]] = {
    "sparse sgd": Case(optimize={"all": ANY["sgd"]}, table="sparse"),
    "sparse adagrad": Case(optimize={"all": ANY["adagrad"]}, table="sparse"),
    "sparse adam": Case(optimize={"table": of("SparseAdam", lr=0.05, eps=1e-4), "layers": ANY["adam"]}, table="sparse"),
}
"""What torch can do with sparse gradients."""


def list_cases(names: Mapping[str, Make], seeds: int) -> dict[str, Case]:
    """Return each optimizer with models without a table, and one with a dense one."""
    cases = {}
    for number, (name, make) in enumerate(names.items()):
        for seed in range(seeds):
            case = Case(optimize={"all": make}, seed=100 * number + seed)
            cases[f"{name}/{seed}"] = case
        cases[f"{name}/table"] = Case(optimize={"all": make}, seed=100 * number + 50, table="dense")
    return cases


def repeat(cases: Mapping[str, Case], seeds: int) -> dict[str, Case]:
    return {
        f"{name}/{seed}": replace(case, seed=1000 * (number + 10) + seed)
        for number, (name, case) in enumerate(cases.items())
        for seed in range(seeds)
    }


ON_SERVERS: Final = list_cases(ANY, 2) | repeat(VARIANTS, 2) | repeat(SPARSE, 3)
EVERYWHERE: Final = ON_SERVERS | list_cases(LOCAL, 2) | repeat(SPECIAL, 2)
SAMPLE: Final = {
    name: EVERYWHERE[name] for name in ("adam/0", "sgd nesterov decay/table", "accumulated/0", "sparse adam/0")
}


MEETING_LATE: Final = {name: case for name, case in EVERYWHERE.items() if case.clip is None}
"""Ranks that average gradients in `LocalSGD`'s first steps do it in the optimizer's step, after they were clipped:
one process cannot tell that."""

# --- steps, the same in a rank and without ----------------------------------------------------------------------------

Compute = Callable[[Any, int, int], None]
"""Adds to the gradients of a model those of a batch: of a step, and of a number in it."""


def take_steps(
    case: Case,
    model: Any,
    prepare: Callable[[Any], Any],
    compute: Callable[[Any, int, bool], torch.Tensor],
    is_due: Callable[[int], contextlib.AbstractContextManager[Any]] = lambda step: contextlib.nullcontext(),
) -> Iterator[None]:
    """Train; yield after each step.

    Args:
        case: How.
        model: What.
        prepare: What is done to an optimizer.
        compute: Runs the backward pass of a batch, given its number and whether it is the last of its step.
        is_due: In what a step is taken.
    """
    chosen = split(model, case.optimize)
    optimizers = [prepare(make(chosen[group])) for group, make in case.optimize.items()]
    schedules = [case.schedule(one) for one in optimizers] if case.schedule is not None else []

    def compute_all(step: int) -> torch.Tensor:
        for one in optimizers:
            one.zero_grad()
        count = case.batches_a_step
        losses = [compute(model, count * step + number, number == count - 1) / count for number in range(count)]
        if case.clip is not None:
            case.clip(model.parameters())
        return sum(losses, torch.zeros(()))

    for step in range(STEPS):
        with is_due(step):
            if case.has_closure:
                for one in optimizers:
                    one.step(functools.partial(compute_all, step))
            else:
                compute_all(step)
                for one in optimizers:
                    one.step()
            for schedule in schedules:
                schedule.step()
        yield


def read(model: torch.nn.Module) -> Weights:
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


# --- in a rank --------------------------------------------------------------------------------------------------------


def train_in_rank(config: dict[str, Any]) -> list[dict[str, Weights]]:
    """The training function; returns all ranks' weights, by case."""
    rank, size = train.get_context().get_world_rank(), train.get_context().get_world_size()
    found = {}

    @contextlib.contextmanager
    def wait_for_turn(step: int) -> Iterator[None]:
        """Have the ranks step one after the other, so that there is one right answer."""
        for _ in range(rank):
            dist.barrier()
        yield
        for _ in range(rank, size):
            dist.barrier()

    for name, case in config["cases"].items():
        model = Tower(case.seed, case.table)
        if rank:  # all must begin with rank 0's
            for value in model.parameters():
                value.data += 1
        prepared = hocket_torch.prepare_model(model)

        def compute(prepared: Any, batch: int, is_last: bool, model: Any = model, case: Case = case) -> torch.Tensor:
            x, goal = make_batch(model, case.seed, batch, rank)
            with hocket_torch.no_sync(prepared, when=not is_last):
                loss = torch.nn.functional.mse_loss(prepared(x), goal)
                (loss / case.batches_a_step).backward()
            return loss.detach()

        takes_turns = wait_for_turn if config.get("takes_turns") else lambda step: contextlib.nullcontext()
        for _ in take_steps(case, prepared, hocket_torch.prepare_optimizer, compute, takes_turns):
            pass
        hocket_torch.synchronize()
        found[name] = read(model)
    ranks: list[Any] = [found] * size
    if size > 1:
        dist.all_gather_object(ranks, found)
    return ranks


def refuse_in_rank(config: dict[str, Any]) -> dict[str, str]:
    """Prepare what is refused; return what is said."""
    said = {}
    for name, case in config["cases"].items():
        model = hocket_torch.prepare_model(Tower(case.seed, case.table))
        chosen = split(model, case.optimize)
        try:
            for group, make in case.optimize.items():
                hocket_torch.prepare_optimizer(make(chosen[group]))
        except ValueError as error:
            said[name] = str(error)
    return said


# --- in one process ---------------------------------------------------------------------------------------------------


def compute_plainly(case: Case, model: Tower, batches: list[tuple[int, int]]) -> torch.Tensor:
    """Run a backward pass with the rows of several ranks, (batch, rank)."""
    parts = [make_batch(model, case.seed, *one) for one in batches]
    x, goal = (torch.cat(part) for part in zip(*parts, strict=True))
    loss = torch.nn.functional.mse_loss(model(x), goal)
    (loss / case.batches_a_step).backward()
    return loss.detach()


def train_together(case: Case, size: int) -> Weights:
    """Each step takes the rows of all ranks."""
    model = Tower(case.seed, case.table)
    for _ in take_steps(
        case,
        model,
        lambda one: one,
        lambda model, batch, _: compute_plainly(case, model, [(batch, rank) for rank in range(size)]),
    ):
        pass
    return read(model)


def train_in_turns(case: Case, size: int) -> Weights:
    """One step with the rows of each rank, one after the other, with one optimizer.

    The schedules are the ranks' own.
    """
    model = Tower(case.seed, case.table)
    chosen = split(model, case.optimize)
    optimizers = [make(chosen[group]) for group, make in case.optimize.items()]
    schedules = [case.schedule(one) for one in optimizers] if case.schedule is not None else []
    for step, rank in itertools.product(range(STEPS), range(size)):
        for one in optimizers:
            one.zero_grad()
        for number in range(case.batches_a_step):
            compute_plainly(case, model, [(case.batches_a_step * step + number, rank)])
        if case.clip is not None:
            case.clip(model.parameters())
        for one in optimizers:
            one.step()
        if rank == size - 1:
            for schedule in schedules:
                schedule.step()
    return read(model)


def train_apart(case: Case, size: int, strategy: strategies.LocalSGD) -> Weights:
    """Each rank steps on its own, and now and then they meet."""
    begun = Tower(case.seed, case.table)
    models = [copy.deepcopy(begun) for _ in range(size)]
    anchors = [value.detach().clone().requires_grad_() for value in begun.parameters()]
    outer: Any = strategy.outer
    if isinstance(outer, strategies.Nesterov):
        outer = functools.partial(torch.optim.SGD, lr=outer.lr, momentum=outer.momentum, nesterov=True)
    outer = None if outer is None else outer(anchors)

    def compute(rank: int, model: Any, batch: int, _: bool) -> torch.Tensor:
        is_early = batch < strategy.begin_after * case.batches_a_step
        return compute_plainly(case, model, [(batch, one) for one in (range(size) if is_early else [rank])])

    @torch.no_grad()
    def meet() -> None:
        means = [torch.stack(values).mean(0) for values in zip(*(one.parameters() for one in models), strict=True)]
        if outer is not None:
            for anchor, mean in zip(anchors, means, strict=True):
                anchor.grad = anchor - mean
            outer.step()
            means = [anchor.detach() for anchor in anchors]
        for value, mean in ((v, m) for one in models for v, m in zip(one.parameters(), means, strict=True)):
            value.copy_(mean)

    ways = [
        take_steps(case, model, lambda one: one, functools.partial(compute, rank)) for rank, model in enumerate(models)
    ]
    apart = -strategy.begin_after
    for _ in zip(*ways, strict=True):
        apart += 1
        if apart == 0:
            for anchor, value in zip(anchors, models[0].parameters(), strict=True):
                anchor.data.copy_(value.detach())
        if apart == strategy.sync_every:
            meet()
            apart = 0
    if apart > 0:
        meet()
    return read(models[0])


# --- rows that are moved alone ----------------------------------------------------------------------------------------


LAZY: Final[Mapping[str, tuple[Make, Mapping[str, Any]]]] = {
    "momentum": (of("SGD", lr=0.05, momentum=0.9), {"lr": 0.05, "momentum": 0.9}),
    "adam": (of("Adam", lr=0.05), {"lr": 0.05, "betas": (0.9, 0.999), "eps": 1e-8}),
    "adamw": (
        of("AdamW", lr=0.05, betas=(0.8, 0.9), weight_decay=0.1),
        {"lr": 0.05, "betas": (0.8, 0.9), "eps": 1e-8, "weight_decay": 0.1},
    ),
}
"""What torch does not do with rows alone, and the numbers of it."""


def move_rows_in_rank(config: dict[str, Any]) -> list[tuple[Any, Any, Any]]:
    """The training function; returns the ids of each step, the gradient of the whole table, and the table
    afterwards."""
    torch.manual_seed(3)
    model: Any = hocket_torch.prepare_model(torch.nn.Embedding(IDS, 3, sparse=True).double())
    seen: list[tuple[Any, Any, Any]] = [(None, None, model.weight.detach().numpy().copy())]
    optimizer = hocket_torch.prepare_optimizer(LAZY[config["name"]][0](model.parameters()))
    for step in range(STEPS):
        ids = torch.randint(0, IDS, (ROWS,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (model(ids) - step).square().sum().backward()
        gradient = model.weight.grad.to_dense().numpy().copy()
        optimizer.step()
        seen.append((ids.numpy(), gradient, model.state_dict()["weight"].numpy()))
    return seen


class LazyRows:
    """What servers do with the rows of a table that a step names: the others keep values and moments."""

    def __init__(self, table: np.ndarray[Any, Any], **given: Any) -> None:
        self.table, self.given = table.copy(), given
        self.first, self.second = np.zeros_like(table), np.zeros_like(table)
        self.step_count = 0

    def step(self, gradient: np.ndarray[Any, Any], ids: np.ndarray[Any, Any]) -> None:
        given, self.step_count = self.given, self.step_count + 1
        for row in np.unique(ids):
            g, w = gradient[row].copy(), self.table[row]
            if "momentum" in given:
                self.first[row] = given["momentum"] * self.first[row] + g
                self.table[row] = w - given["lr"] * self.first[row]
                continue
            beta1, beta2 = given["betas"]
            decay = given.get("weight_decay", 0.0)
            self.first[row] = beta1 * self.first[row] + (1 - beta1) * g
            self.second[row] = beta2 * self.second[row] + (1 - beta2) * g * g
            mean = self.first[row] / (1 - beta1**self.step_count)
            square = self.second[row] / (1 - beta2**self.step_count)
            self.table[row] = w - given["lr"] * (mean / (np.sqrt(square) + given["eps"]) + decay * w)
