"""Amounts as people write them on a command line: 3h, 5GB/s, 1%, 7e9. Each with the remedy where it is none."""

import re

import click

from regrow.core.errors import ConfigError

_SPANS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_SIZES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_NUMBER = r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)"


def seconds(flag: str, text: str) -> float:
    found = re.fullmatch(rf"{_NUMBER}\s*(ms|s|min|h|d)", text.strip())
    if found is None or not 0 < (value := float(found[1]) * _SPANS[found[2]]) < 1e12:
        raise ConfigError(f"{flag} {text}: write a time with its unit, for example 90s, 20min, 3h or 7d")
    return value


def share(flag: str, text: str) -> float:
    """Of training: more than nothing, less than all."""
    found = re.fullmatch(rf"{_NUMBER}\s*%", text.strip())
    if found is None or not 0 < (value := float(found[1]) / 100) < 1:
        raise ConfigError(f"{flag} {text}: write a share of the time between 0% and 100%, for example 1% or 0.5%")
    return value


def bytes_per_s(flag: str, text: str) -> float:
    found = re.fullmatch(rf"{_NUMBER}\s*([kmgt]?)b/s", text.strip(), re.IGNORECASE)
    if found is None or not 0 < (value := float(found[1]) * _SIZES[found[2].lower()]) < 1e18:
        raise ConfigError(f"{flag} {text}: write bytes per second, for example 800MB/s or 5GB/s")
    return value


def count(flag: str, text: str) -> float:
    """Of parameters, say."""
    found = re.fullmatch(rf"{_NUMBER}([kmbt]?)", text.strip(), re.IGNORECASE)
    if found is None or not 1 <= (value := float(found[1]) * _SIZES[found[2].lower().replace("b", "g")]) < 1e18:
        raise ConfigError(f"{flag} {text}: write a number, for example 7e9 or 7B")
    return value


def steps(text: str) -> int:
    """auto is 0. For click, which names the flag."""
    if text == "auto":
        return 0
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise click.BadParameter(f"{text} is neither auto nor a number of steps of at least 1")
    return int(text)
