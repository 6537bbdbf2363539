"""The part of a search in a trial's process: `hocket.tune.report`, and the actor that runs trials."""
