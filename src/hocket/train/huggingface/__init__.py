"""Hugging Face: `transformers` supports its Trainer in the ranks of a `TorchTrainer`."""
