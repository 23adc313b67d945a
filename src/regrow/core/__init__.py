"""The words and the rules. Pure: no clock, randomness, I/O, threads, logging or torch; time arrives inside events."""
