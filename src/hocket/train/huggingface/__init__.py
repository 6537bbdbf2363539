"""Hugging Face: `transformers` has what its Trainer needs in the ranks of a `TorchTrainer`."""
