"""A network that is trained by several ranks, with a snapshot after each epoch from which a restarted run goes on.

Written after PyTorch's tutorial "Fault-tolerant Distributed Training with torchrun"
(https://docs.pytorch.org/tutorials/beginner/ddp_series_fault_tolerance.html, BSD-3-Clause). The first attempt is ended
in its third epoch by rank 1, which exits.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 4
SNAPSHOT = Path("snapshot.pt")


def make_loader() -> tuple[DataLoader, DistributedSampler]:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(128, 20, generator=generator)
    dataset = TensorDataset(x, x @ torch.rand(20, 1, generator=generator))
    sampler = DistributedSampler(dataset)
    return DataLoader(dataset, batch_size=8, sampler=sampler), sampler


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    loader, sampler = make_loader()
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(20, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    begin = 0
    if SNAPSHOT.exists():
        snapshot = torch.load(SNAPSHOT)
        model.module.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        begin = snapshot["epochs"]
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    loss = torch.tensor(0.0)
    for epoch in range(begin, EPOCHS):
        if attempt == 0 and epoch == 2:
            dist.barrier()
            if dist.get_rank() == 1:
                sys.exit(3)
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch + 1}
            torch.save(state, SNAPSHOT)
        dist.barrier()  # no rank goes on, or exits, before the snapshot is whole
    if dist.get_rank() == 0:
        weights = torch.cat([parameter.flatten() for parameter in model.parameters()]).tolist()
        found = {"attempt": attempt, "begin": begin, "loss": loss.item(), "weights": weights}
        sys.stdout.write(json.dumps(found) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
