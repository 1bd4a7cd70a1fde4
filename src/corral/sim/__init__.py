"""Fleets of simulated machines that speak the real protocol; "sim" is what they call themselves everywhere."""
