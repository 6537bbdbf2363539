"""PyTorch in the ranks. `hocket.train.torch` has the public names, and says what is where."""
