"""The programming model, the same on every engine: remote functions, actors, references, placement groups."""
