"""What agents and the control plane say to each other: plain dataclasses and one version number."""
