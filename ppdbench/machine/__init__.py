"""The machine that runs: its clock, cores, memory and speed, and what it is busy with besides."""
