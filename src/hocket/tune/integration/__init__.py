"""What brings reports of other loops to a trial."""
