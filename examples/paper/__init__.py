"""The experiments of the paper, run through this package: ``python -m examples.paper --help``."""
