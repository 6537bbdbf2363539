"""Parameter servers in PyTorch: a step pushes the gradients to the servers, and pulls the new parameters.

See `hocket.train.strategies.ps_client`.

The optimizer stays torch's own object, so schedulers, parameter groups and ``state_dict`` work. Before its ``step`` the
gradients are pushed and set aside, so torch finds none and does nothing. Then parameters are pulled, and gradients put
back.

A rank's parameters are copies. They are pulled when a step is over or, if staleness is bounded, when the next step
begins: in the forward pass of the prepared model, since only a rank that computes may keep others waiting. Large
embeddings are not copied at all (`tables`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final, final

import torch
import torch.distributed as dist

from hocket import ps
from hocket._base.internals import torch as torch_internals
from hocket.train import strategies
from hocket.train.frameworks.torch.strategies import averaging, closures, served_optimizers, strategy, tables
from hocket.train.strategies import parameter_server, ps_client

_CHECKED_STEPS: Final = 8
"""After so many steps only each eighth step is checked, because a check reads all weights once."""

STEPS_KEY: Final = "hocket_steps"
"""The key of the number of steps in an optimizer's first parameter group. So the number is saved and loaded with the
optimizer, prepared or not."""


@final
class TorchParameterServer(strategy.TorchStrategy):
    needs_optimizer = True
    shares_gradients = False

    def __init__(self, settings: parameter_server.OpenParameterServer, ranks: strategies.Ranks) -> None:
        self._min_rows = settings.settings.min_table_rows
        self._ranks = ranks
        self._client = ps_client.open_client(settings, "torch.TorchTrainer")
        self._models: list[torch.nn.Module] = []
        self._tables: dict[torch.Tensor, torch.nn.Embedding] = {}
        #: The variables of the servers, for dense parameters and for tables.
        self._served: dict[torch.Tensor, Any] = {}
        self._optimizers: list[torch.optim.Optimizer] = []
        #: Parameters and gradients of the step that is being taken.
        self._aside: list[tuple[torch.Tensor, torch.Tensor]] = []
        #: The number of pushes when the copies were pulled; -1 forces the next pull.
        self._seen = -1
        self._num_steps = 0
        self._pulled = ps_client.PulledWeights("Load new weights with model.load_state_dict()")
        self._followed: set[torch.nn.Module] = set()
        self._hooks: list[Any] = []

    # --- calls from the training function -----------------------------------------------------------------------------

    def adapt_model(
        self, model: torch.nn.Module, parallel_strategy: str, options: Mapping[str, object], device: torch.device
    ) -> torch.nn.Module:
        strategy.require_whole(
            "ParameterServer", "the parameters on servers and wraps no model", parallel_strategy, options
        )
        found = {weight: module for module, weight in tables.find_tables(model, self._min_rows)}
        self._tables.update(found)
        if self._ranks.world_size > 1:
            averaging.copy_from_first(
                tensor for tensor in itertools.chain(model.parameters(), model.buffers()) if tensor not in found
            )
        self._models.append(model)
        # A function, not a method: `copy.deepcopy` of the model would copy a method's object.
        self._hooks.append(model.register_forward_pre_hook(lambda model, args: self._before_forward(model)))
        return model

    def adapt_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        self._check_unserved(optimizer)
        groups = self._list_new(optimizer)
        names = self._name_parameters(groups)
        if self._ranks.rank > 0:
            dist.barrier()  # rank 0 makes the variables first, with its values
        self._make(optimizer, groups, names, is_made=self._ranks.rank > 0)
        if self._ranks.world_size > 1 and self._ranks.rank == 0:
            dist.barrier()
        self._optimizers.append(optimizer)
        self._hooks.append(optimizer.register_step_pre_hook(self._push))
        self._refresh()
        return optimizer

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        for parameter, gradient in self._aside:
            parameter.grad = gradient
        self._aside.clear()
        self._seen = -1
        if self._client.enters_early:
            self._pull()
        self._client.pass_turn()

    def synchronize(self) -> None:
        self._refresh()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._client.close()

    # --- a step -----------------------------------------------------------------------------------------------------

    def _push(self, optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        """Push the gradients, and set them aside. Called before ``step``."""
        replaced = closures.run_closure(args, kwargs)
        self._check_pulled()
        new = self._list_new(optimizer)
        if new:  # a parameter group was added
            self._make(optimizer, new, self._name_parameters(new))
        first = optimizer.param_groups[0]
        first[STEPS_KEY] = first.get(STEPS_KEY, 0) + 1
        gradients = []
        for group in optimizer.param_groups:
            rule = served_optimizers.convert(optimizer, group)
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                target = self._served[parameter]
                if target.optimizer != rule:
                    raise ValueError(
                        f"The servers update `{target.name}` with {target.optimizer}, of which only the learning rate "
                        f"can change, but the optimizer is now {rule}. Schedule lr alone, for example with "
                        "OneCycleLR(cycle_momentum=False)."
                    )
                scale = ps_client.find_scale(float(group["lr"]), rule)
                gradients.append(ps_client.Gradient(target, _take_gradient(target, parameter.grad), scale))
                self._aside.append((parameter, parameter.grad))
        self._client.push(sum(one.param_groups[0].get(STEPS_KEY, 0) for one in self._optimizers), gradients)
        for parameter, _ in self._aside:
            parameter.grad = None
        return replaced

    # --- copies -----------------------------------------------------------------------------------------------------

    def _before_forward(self, model: torch.nn.Module) -> None:
        if not self._served:
            return
        if not (model.training and torch.is_grad_enabled()):
            if self._seen < 0:
                self._refresh()
        elif not self._client.is_inside:
            self._pull()

    def _pull(self) -> None:
        """Begin a step with current copies."""
        self._client.enter()
        self._refresh()

    @torch.no_grad()
    def _refresh(self) -> None:
        """Bring the copies up to date, if any rank has pushed."""
        version = self._client.version
        if version == self._seen:
            return
        self._pulled.forget()
        is_checked = _is_checked(self._num_steps + 1)
        for parameter, target in self._served.items():
            if parameter in self._tables:
                continue
            if parameter.device.type == "cpu" and parameter.dtype == _get_dtype(target) and parameter.is_contiguous():
                self._client.read(target, parameter.detach().numpy())
            else:
                parameter.copy_(torch.from_numpy(self._client.read(target)))
            if is_checked:
                self._pulled.note(target.name, tables.to_array(parameter))
        self._seen = version

    def _check_pulled(self) -> None:
        """Check that the program has not changed the copies, in the first steps and in some later ones."""
        self._num_steps += 1
        if self._seen < 0 or not _is_checked(self._num_steps):
            return
        for parameter, target in self._served.items():
            if parameter not in self._tables:
                self._pulled.check(target.name, ps_client.sum_squares(tables.to_array(parameter)))

    # --- making -----------------------------------------------------------------------------------------------------

    def _check_unserved(self, optimizer: torch.optim.Optimizer) -> None:
        for parameter in itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups):
            if parameter in self._served:
                raise ValueError(
                    f"prepare_optimizer() received an optimizer ({type(optimizer).__name__}) of parameters that "
                    f"another optimizer steps, `{self._served[parameter].name}` among them. With ParameterServer the "
                    "servers would go on with the moments of the first one. Keep the first optimizer (its lr may "
                    "change), and give it more parameters with add_param_group(); or train each phase in a trainer of "
                    "its own, from the checkpoint of the phase before."
                )

    def _list_new(self, optimizer: torch.optim.Optimizer) -> list[tuple[dict[str, object], torch.Tensor]]:
        return [
            (group, parameter)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad and parameter not in self._served
        ]

    def _name_parameters(self, groups: list[tuple[dict[str, object], torch.Tensor]]) -> dict[torch.Tensor, str]:
        """Return the names of new parameters on the servers: those in the model, with the model's number if there are
        several models, and marked if a parameter has replaced another of that name."""
        called: dict[torch.Tensor, str] = {
            parameter: name if number == 0 else f"model{number}.{name}"
            for number, model in reversed(list(enumerate(self._models)))
            for name, parameter in model.named_parameters()
        }
        if any(parameter not in called for _, parameter in groups):
            raise ValueError(
                "ParameterServer holds parameters of prepared models, but the optimizer has other parameters. Call "
                "model = prepare_model(model) first, and make the optimizer from the returned model's parameters."
            )
        taken = {target.name for target in self._served.values()}
        names: dict[torch.Tensor, str] = {}
        for _, parameter in groups:
            names[parameter] = called[parameter]
            while names[parameter] in taken:
                names[parameter] += "'"
        return names

    def _make(
        self,
        optimizer: torch.optim.Optimizer,
        groups: list[tuple[dict[str, object], torch.Tensor]],
        names: Mapping[torch.Tensor, str],
        *,
        is_made: bool = False,
    ) -> None:
        for group, parameter in groups:
            rule = served_optimizers.convert(optimizer, group)
            value = tables.to_array(parameter)
            module = self._tables.get(parameter)
            if module is not None:
                table = self._client.make_table(names[parameter], value, rule, is_made=is_made)
                tables.ServedEmbedding.adopt(module, table, self._client)
                self._served[parameter] = table
            else:
                self._served[parameter] = self._client.make_variable(names[parameter], value, rule, is_made=is_made)
        for model in self._models:
            for owner in model.modules():
                if owner not in self._followed and any(one in self._served for one in owner.parameters(recurse=False)):
                    self._follow(owner)
        self._seen = -1

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def _follow(self, module: torch.nn.Module) -> None:
        """Save a module's parameters from the servers, and load them into the servers."""

        def save(*args: Any) -> None:  # functions, as in `adapt_model`
            self._save(*args)

        def load(*args: Any) -> None:
            self._load(*args)

        self._followed.add(module)
        if not isinstance(module, tables.ServedEmbedding):  # it does so itself
            self._hooks += torch_internals.hook_state(module, save, load)

    def _save(self, module: torch.nn.Module, state: dict[str, object], prefix: str, metadata: object) -> None:
        """Put the servers' parameters into a ``state_dict``."""
        for name, parameter in module.named_parameters(recurse=False):
            if parameter in self._served and f"{prefix}{name}" in state:
                value = torch.from_numpy(self._client.read(self._served[parameter]))
                state[f"{prefix}{name}"] = value.to(parameter.device, parameter.dtype)

    def _load(self, module: torch.nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
        """Give the servers the loaded parameters."""
        found = []
        for name, parameter in module.named_parameters(recurse=False):
            value = state.get(f"{prefix}{name}")
            if parameter in self._served and value is not None and value.shape == parameter.shape:
                found.append((self._served[parameter], tables.to_array(value)))
        if found:
            self._client.load(found)
            self._seen = -1


def _is_checked(step: int) -> bool:
    return step <= _CHECKED_STEPS or step % _CHECKED_STEPS == 0


def _take_gradient(target: object, gradient: torch.Tensor) -> object:
    if isinstance(target, ps.Embedding):
        return tables.take_gradient(target.name, gradient)
    return tables.to_array(gradient.to_dense())


def _get_dtype(target: Any) -> object:
    return torch.from_numpy(target.dtype.type(0).reshape(1)).dtype
