"""The engine without processes: for breakpoints, doctests, and unit tests of programs that use Hocket."""
