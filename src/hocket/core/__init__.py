"""The programming model: remote functions, actors, references, placement groups. The same on every engine."""
