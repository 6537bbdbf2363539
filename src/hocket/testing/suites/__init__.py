"""The parts of the contract that every engine must keep, each with its tests (see `hocket.testing.contract`)."""
