"""Control connections: frames, messages, the door every peer passes, TCP, and an in-memory twin for tests."""
