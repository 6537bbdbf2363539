"""Layouts in frameworks: `contract` defines the methods, and each subpackage implements them for one framework."""
