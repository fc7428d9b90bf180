"""The version of the package, for modules that the package imports."""

__version__ = "0.1.0"
