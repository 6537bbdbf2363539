"""A parameter server on rank 0, whose weights the other rank trains through remote calls and distributed autograd.

Written after PyTorch's tutorial "Implementing a Parameter Server Using Distributed RPC Framework"
(https://docs.pytorch.org/tutorials/intermediate/rpc_param_server_tutorial.html, BSD-3-Clause).
"""

import json
import os
import sys

import torch
from torch.distributed import autograd, rpc
from torch.distributed.optim import DistributedOptimizer


class Server(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)

    def list_parameters(self) -> list:
        return [rpc.RRef(parameter) for parameter in self.parameters()]

    def get_gradient_norm(self, context: int) -> float:
        gradients = autograd.get_gradients(context)
        return float(sum(gradients[parameter].square().sum() for parameter in self.parameters()) ** 0.5)


def train() -> dict:
    server = rpc.remote("server", Server)
    optimizer = DistributedOptimizer(torch.optim.SGD, server.rpc_sync().list_parameters(), lr=0.1)
    losses, norms = [], []
    for step in range(10):
        x = torch.rand(16, 6, generator=torch.Generator().manual_seed(step))
        with autograd.context() as context:
            loss = torch.nn.functional.mse_loss(server.rpc_sync().forward(x), x.sum(1, keepdim=True))
            autograd.backward(context, [loss])
            norms.append(server.rpc_sync().get_gradient_norm(context))
            optimizer.step(context)
        losses.append(loss.item())
    return {"losses": losses, "norms": norms}


def main() -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpc.init_rpc("server" if rank == 0 else f"trainer{rank}", rank=rank, world_size=world_size)
    if rank == 1:
        sys.stdout.write(json.dumps(train()) + "\n")
    rpc.shutdown()  # waits until all are done


if __name__ == "__main__":
    main()
