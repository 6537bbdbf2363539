"""The side of a search that runs in a trial's process: what `report` does, and the actor that runs trials."""
