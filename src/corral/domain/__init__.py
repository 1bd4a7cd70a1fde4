"""The rules. Standard library only: no I/O, no clock, no chance, no framework; time and ids are handed in."""
