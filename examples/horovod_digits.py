"""A Horovod program with one changed import: handwritten digits, with PyTorch.

hocket run --nproc-per-node 2 examples/horovod_digits.py     # as horovodrun -np 2 did
python examples/horovod_digits.py --num-workers 2            # or from a trainer, in any Python program
python examples/horovod_digits.py                            # alone
"""

import argparse

import torch
from sklearn import datasets
from torch.utils import data
from torch.utils.data.distributed import DistributedSampler

import hocket.train.horovod.torch as hvd  # was: import horovod.torch as hvd
from hocket import train
from hocket.train.torch import TorchTrainer


def main(config: dict[str, int]) -> float:
    """Train in a rank; return the accuracy on pictures that were not trained on."""
    hvd.init()
    torch.manual_seed(hvd.rank())
    digits = datasets.load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    train_set = data.TensorDataset(images[:1500], labels[:1500])
    sampler: DistributedSampler[data.TensorDataset] = DistributedSampler(
        train_set, num_replicas=hvd.size(), rank=hvd.rank(), drop_last=True
    )
    loader = data.DataLoader(train_set, batch_size=32, sampler=sampler, drop_last=True)

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size(), momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    for epoch in range(config["num_epochs"]):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    with torch.no_grad():
        correct = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
    accuracy = float(hvd.allreduce(correct, name="accuracy"))
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks: accuracy {accuracy:.2f}")
    hvd.shutdown()
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-epochs", type=int, default=10)
    parser.add_argument("--num-workers", type=int, default=0, help="start this many ranks from here")
    parser.add_argument("--storage-path", default=None)
    options = parser.parse_args()
    if options.num_workers:
        trainer = TorchTrainer(
            main,
            train_loop_config={"num_epochs": options.num_epochs},
            scaling_config=train.ScalingConfig(num_workers=options.num_workers),
            run_config=train.RunConfig(storage_path=options.storage_path),
        )
        print(f"the trainer returned {trainer.fit().return_value:.2f}")
    else:
        main({"num_epochs": options.num_epochs})
