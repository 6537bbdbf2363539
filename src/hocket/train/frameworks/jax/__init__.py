"""Support of JAX in the ranks. `hocket.train.jax` has the public names, and lists the modules."""
