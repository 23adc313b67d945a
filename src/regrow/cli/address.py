"""HOST:PORT, as written on a command line."""

from regrow.core.errors import ConfigError
from regrow.core.roster import Endpoint


def parse_address(flag: str, text: str) -> Endpoint:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdigit() and int(port) < 1 << 16):
        raise ConfigError(f"{flag} {text}: write HOST:PORT, e.g. 127.0.0.1:29400")
    return Endpoint(host.removeprefix("[").removesuffix("]"), int(port))
