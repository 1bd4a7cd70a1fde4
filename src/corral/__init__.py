"""Corral: a self-hosted control plane for GPU machines."""

__version__ = "0.1.0"
