"""What the job's state is: its tree, its digest, its flat gradient, and how it travels."""
