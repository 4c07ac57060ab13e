"""Dollars as text and as integer cents. Never a float. Imports the standard library only."""

import re
from decimal import Decimal

_PLAIN = re.compile(r"[0-9]{1,10}(?:\.[0-9]{1,2})?")

_WHAT_IS_WRONG = (
    (re.compile(r"-.*", re.DOTALL), "is negative"),
    (re.compile(r"[+]?[0-9.]+[eE][+-]?[0-9]+"), "has an exponent"),
    (re.compile(r"[0-9]{1,3}(?:[,' ][0-9]{3})+(?:\.[0-9]*)?"), "has a thousands separator"),
    (re.compile(r"[0-9]+\.[0-9]{3,}"), "has more than two decimals"),
    (re.compile(r"[0-9]{11,}(?:\.[0-9]{1,2})?"), "is larger than 9,999,999,999.99"),
)


class BadAmount(ValueError):
    """A text that is not an amount; the sentence begins with a verb, so that it can follow the name of a column."""

    def __init__(self, text: str) -> None:
        problem = next((problem for pattern, problem in _WHAT_IS_WRONG if pattern.fullmatch(text)), "is not an amount")
        shown = ascii(text if len(text) <= 30 else text[:30] + "…")
        super().__init__(f"{problem} ({shown}); write it like 1840 or 1840.00")


def cents(text: str) -> int:
    """`13864.1` is 1,386,410 cents. Plain digits with at most two decimals; raises BadAmount for anything else."""
    if not _PLAIN.fullmatch(text):
        raise BadAmount(text)
    return int(Decimal(text).scaleb(2))


def dollars(minor: int) -> str:
    """1,386,410 cents are `13,864.10`; a negative difference keeps its sign."""
    whole, part = divmod(abs(minor), 100)
    return f"{'-' if minor < 0 else ''}{whole:,}.{part:02}"
