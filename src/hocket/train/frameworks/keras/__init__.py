"""Support of Keras 3 in the ranks. `hocket.train.keras` has the public names, and lists the modules."""
