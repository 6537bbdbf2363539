"""Values of all variables at one moment: `snapshots` in memory, and `checkpoints` in folders."""
