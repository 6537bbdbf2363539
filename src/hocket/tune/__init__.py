"""Search for hyperparameters: many trials of one function, and what became of each."""
