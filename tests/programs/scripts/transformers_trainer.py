"""A small GPT-2 that Hugging Face's Trainer trains, evaluates, saves, and goes on with from what it has saved.

Written after https://huggingface.co/docs/transformers/trainer (Apache-2.0).
"""

import json
import sys

import torch
import transformers


class Sentences(torch.utils.data.Dataset):
    """Tokens in arithmetic progressions."""

    def __init__(self, begin: int, count: int) -> None:
        self.begin, self.count = begin, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(12) * (1 + number % 5) + self.begin + number) % 50
        return {"input_ids": tokens, "labels": tokens}


def train(epochs: int, resume: bool) -> dict:
    transformers.set_seed(0)
    config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    arguments = transformers.TrainingArguments(
        "saved",
        use_cpu=True,
        per_device_train_batch_size=4,
        num_train_epochs=epochs,
        learning_rate=5e-3,
        lr_scheduler_type="constant",
        eval_strategy="epoch",
        save_strategy="epoch",
        gradient_accumulation_steps=2,
        report_to=[],
        disable_tqdm=True,
    )
    model = transformers.GPT2LMHeadModel(config)
    trainer = transformers.Trainer(
        model=model, args=arguments, train_dataset=Sentences(0, 64), eval_dataset=Sentences(64, 16)
    )
    done = trainer.train(resume_from_checkpoint=resume)
    evaluated = trainer.evaluate()
    return {
        "ranks": trainer.accelerator.num_processes,
        "steps": done.global_step,
        "evaluated": evaluated["eval_loss"],
        "total": sum(parameter.double().abs().sum().item() for parameter in model.parameters()),
    }


def main() -> None:
    found = {"first": train(2, resume=False), "resumed": train(3, resume=True)}
    if torch.distributed.get_rank() == 0:
        sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
