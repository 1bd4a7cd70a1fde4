"""The program on a machine: dials out, reports, runs containers (spec 40). Python 3.10, pure Python only."""
