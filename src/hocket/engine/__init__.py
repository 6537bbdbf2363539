"""What runs tasks and actors: one contract, several engines."""
