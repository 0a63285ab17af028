"""When another try may succeed, from the words of a vendor or a CLI. Pure: the time is an argument."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

LOOKED_AT = 16_384  # Characters from the beginning of a message.
LONGEST = 366 * 86_400.0  # Seconds; what is further off was misread.

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_AMOUNT = r"\d+(?:\.\d+)?\s*(?:ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)(?![a-z])"
# "try again in 3 days 4 hours", "Please retry in 34.07s", "will reset after 14h18m42s", "retryDelay": "34s".
_IN = re.compile(
    rf"(?:try again|retry(?:ing)?|resets?|available again)\s+(?:in|after)\s+(?P<span>(?:{_AMOUNT}(?:,|\s|and)*)+)"
    rf"|retry[-_ ]?(?:delay|after)[\"']?\s*[:=]?\s*[\"']?(?P<delay>{_AMOUNT})",
    re.IGNORECASE,
)
_ONE = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|mil|s|m|h|d)", re.IGNORECASE)
# "Retry-After: 30", "retry_after=30"; "resets_in_seconds": 30; "limit reached|1795022948"; "resets_at": 1795022948.
_SECONDS = re.compile(r"(?:retry[-_ ]?after|resets?_in_seconds)[\"']?\s*[:=]?\s*(\d+(?:\.\d+)?)", re.IGNORECASE)
_EPOCH = re.compile(r"(?:limit reached\||resets?_?at[\"']?\s*[:=]\s*)(\d{10})\b", re.IGNORECASE)
# "try again at 3:05 PM", "try again at Nov 20th, 2026 3:05 PM", "resets 3pm (Europe/Berlin)", "resets Nov 20, 3pm".
_AT = re.compile(
    r"(?:try again|resets?|available again)\s+(?:at\s+|on\s+)?"
    r"(?:(?P<month>[A-Z][a-z]{2})[a-z]*\.?\s+(?P<day>\d{1,2})(?:st|nd|rd|th)?,?\s+(?:at\s+)?(?:(?P<year>\d{4}),?\s+(?:at\s+)?)?)?"
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d{2}))?\s*(?P<half>[ap])\.?m\b\.?(?:\s*\((?P<zone>[\w/+-]+)\))?",
    re.IGNORECASE,
)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def seconds_in(message: str, now: datetime) -> float | None:
    """Seconds from now until another try may succeed; None if the message does not say. `now` has a time zone."""
    message = message[:LOOKED_AT]
    found = _IN.search(message)
    if found is not None:
        return _plausible(sum(float(n) * _unit(unit) for n, unit in _ONE.findall(found["span"] or found["delay"])))
    plain = _SECONDS.search(message)
    if plain is not None:
        return _plausible(float(plain[1]))
    epoch = _EPOCH.search(message)
    if epoch is not None:
        return _plausible(float(epoch[1]) - now.timestamp())
    at = _AT.search(message)
    return None if at is None else _until(at, now)


def _unit(name: str) -> float:
    name = name.lower()
    return _UNITS["ms" if name == "mil" else name]


def _until(at: re.Match[str], now: datetime) -> float | None:
    from zoneinfo import ZoneInfo  # Slow to import, and rarely needed.

    try:
        here = now if at["zone"] is None else now.astimezone(ZoneInfo(at["zone"]))
        hour = int(at["hour"]) % 12 + (12 if at["half"].lower() == "p" else 0)
        then = here.replace(hour=hour, minute=int(at["minute"] or 0), second=0, microsecond=0)
        if at["month"] is None:
            return _plausible((then if then > here else then + timedelta(days=1)).timestamp() - now.timestamp())
        month = _MONTHS.index(at["month"].lower()) + 1
        then = then.replace(year=int(at["year"] or here.year), month=month, day=int(at["day"]))
        if at["year"] is None and then < here:
            then = then.replace(year=here.year + 1)
        return _plausible(then.timestamp() - now.timestamp())
    except (ValueError, KeyError, OSError):  # A day, a month or a zone that does not exist.
        return None


def _plausible(seconds: float) -> float | None:
    return max(seconds, 0.0) if seconds <= LONGEST else None
