"""Runs of trainers: the log that a run writes into its folder, and who reads it while the run goes on and later."""
