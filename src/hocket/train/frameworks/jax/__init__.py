"""JAX in the ranks. `hocket.train.jax` has the public names, and says what is where."""
