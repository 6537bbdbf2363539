"""Keras 3 in the ranks. `hocket.train.keras` has the public names, and says what is where."""
