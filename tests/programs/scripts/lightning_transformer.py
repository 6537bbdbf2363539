"""Trains the `LightningTransformer` that Lightning ships with Fabric, on a text of this folder: its own is downloaded.

The model, and the dataset that reads the text, are those of lightning.pytorch.demos.transformer (Apache-2.0); the loop
is written after https://lightning.ai/docs/fabric/stable/fundamentals/convert.html (Apache-2.0).
"""

import json
import sys

import torch
from lightning.fabric import Fabric
from lightning.pytorch.demos.transformer import LightningTransformer, WikiText2
from torch.utils.data import DataLoader


def main() -> None:
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    fabric.seed_everything(0, verbose=False)
    dataset = WikiText2()
    model = LightningTransformer(vocab_size=dataset.vocab_size)
    model, optimizer = fabric.setup(model, model.configure_optimizers())
    loader = fabric.setup_dataloaders(DataLoader(dataset, batch_size=2))
    losses = []
    for number, batch in enumerate(loader):
        optimizer.zero_grad()
        inputs, target = batch
        loss = torch.nn.functional.nll_loss(model(inputs, target), target.view(-1))
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=0.25)
        optimizer.step()
        losses.append(fabric.all_reduce(loss.detach()).item())
        if number == 5:
            break
    fabric.save("transformer.ckpt", {"model": model})
    if fabric.is_global_zero:
        weights = torch.load("transformer.ckpt", weights_only=True)["model"]
        total = sum(value.double().abs().sum().item() for value in weights.values())
        sys.stdout.write("\n" + json.dumps({"ranks": fabric.world_size, "losses": losses, "total": total}) + "\n")


if __name__ == "__main__":
    main()
