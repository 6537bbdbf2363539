"""The parts of the contract of engines, each with its tests (see `hocket.testing.contract`)."""
