"""What Horovod documents of `DistributedOptimizer`, by hand: before each step the mean of the ranks' gradients.

It trains the network of Ray's `horovod_pytorch_example` as that program does, with torch.distributed, and is written
after https://horovod.readthedocs.io/en/stable/pytorch.html (Apache-2.0).
"""

import json
import sys

import horovod_pytorch_example as program
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(42)
    torch.set_num_threads(1)
    steps = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    dataset = datasets.MNIST("", train=True, download=True, transform=steps)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    model = program.Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * dist.get_world_size(), momentum=0.5)
    loss = torch.tensor(0.0)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.nll_loss(model(images), labels)
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
            optimizer.step()
    if dist.get_rank() == 0:
        weights = {name: value.tolist() for name, value in model.state_dict().items()}
        sys.stdout.write(json.dumps({"loss": loss.item(), "weights": weights}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
