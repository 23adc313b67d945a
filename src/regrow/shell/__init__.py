"""The thin shell between the pure core and the machine: clock, journal, log, doors."""
