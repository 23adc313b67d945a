"""Which release of Regrow this is: what a checkpoint says about who wrote it."""

RELEASE = "0.1.0"
