"""A network whose parameters are cut over the ranks, saved with torch.distributed.checkpoint and loaded into another.

Written after PyTorch's tutorials "Getting Started with Fully Sharded Data Parallel (FSDP2)" and "Getting Started with
Distributed Checkpoint (DCP)" (https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html,
https://docs.pytorch.org/tutorials/recipes/distributed_checkpoint_recipe.html; BSD-3-Clause).
"""

import json
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build_sharded(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU()) for _ in range(3)))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def take_steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, numbers: range) -> list[float]:
    losses = []
    for number in numbers:
        generator = torch.Generator().manual_seed(100 * number + dist.get_rank())
        x = torch.rand(8, 16, generator=generator)
        loss = torch.nn.functional.mse_loss(model(x), x.flip(1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    dist.init_process_group("gloo")
    model, optimizer = build_sharded(seed=0)
    losses = take_steps(model, optimizer, range(5))
    parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.save(parts, checkpoint_id="saved")
    other, other_optimizer = build_sharded(seed=1)
    other_parts = dict(zip(("model", "optimizer"), get_state_dict(other, other_optimizer), strict=True))
    dcp.load(other_parts, checkpoint_id="saved")
    set_state_dict(
        other,
        other_optimizer,
        model_state_dict=other_parts["model"],
        optim_state_dict=other_parts["optimizer"],
    )
    losses += take_steps(other, other_optimizer, range(5, 8))
    whole = [parameter.full_tensor().flatten() for parameter in other.parameters()]  # a collective call
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps({"losses": losses, "weights": torch.cat(whole).tolist()}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
