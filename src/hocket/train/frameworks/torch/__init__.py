"""Support of PyTorch in the ranks. `hocket.train.torch` has the public names, and lists the modules."""
