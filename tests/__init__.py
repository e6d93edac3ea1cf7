"""A package, so that no other of this name is found before it: tests import what they share from `tests.support`."""
