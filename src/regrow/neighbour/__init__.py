"""The neighbour of other hosts: keeps copies of their jobs' states and logs in its memory. No torch."""
