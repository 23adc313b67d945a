"""The same core on virtual time: a whole job, its faults and its checks, from one seed.

`python -m regrow.sim --seeds 0:2000` runs many; `--seed N --verbose` tells the story of one. Nothing here decides anything
about training: Attendance and Membership do, exactly as in production. The simulator plays their shells, breaks them, and
checks what they promise after every event.
"""
