"""Programs of public slides and articles, taken here with as few changes as they need: docs/porting.md tells which."""
