"""What of a search runs in a trial's process: what `hocket.tune.report` does, and the actor that runs trials."""
