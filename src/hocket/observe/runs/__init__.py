"""Training runs: the log that a run writes into its folder, and its readers, during the run and later."""
