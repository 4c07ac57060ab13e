"""Money is integer minor units and a currency; this holds and spells it. Imports nothing of ours."""

import re
from dataclasses import dataclass

_NO_DIGITS, _THREE_DIGITS = ("CLP", "ISK", "JPY", "KRW", "UGX", "VND"), ("BHD", "JOD", "KWD", "OMR", "TND")
MINOR_DIGITS = dict.fromkeys(_NO_DIGITS, 0) | dict.fromkeys(_THREE_DIGITS, 3)
"""Digits of the minor unit where they are not two (ISO 4217)."""


def amount(minor: int, currency: str) -> str:
    """The amount in major units, without its currency: 184000 USD is `1,840.00`, 500 JPY is `500`."""
    digits = MINOR_DIGITS.get(currency, 2)
    whole, rest = divmod(abs(minor), 10**digits)
    return ("-" if minor < 0 else "") + f"{whole:,}" + (f".{rest:0{digits}d}" if digits else "")


def minor_units(text: str, currency: str) -> int:
    """The amount that a person wrote in major units: `1,840.00` or `1840` USD is 184000. Commas stand between thousands
    or nowhere, and behind the point are all digits or none: nothing is rounded or guessed. Raises ValueError."""
    digits = MINOR_DIGITS.get(currency, 2)
    fraction = rf"(?:\.(\d{{{digits}}}))?" if digits else "()"
    found = re.fullmatch(rf"(-?)(\d{{1,3}}(?:,\d{{3}}){{0,9}}|\d{{1,30}}){fraction}", text, re.ASCII)
    if found is None:
        example = amount(1_840 * 10**digits, currency)
        raise ValueError(f"Write an amount of {currency} such as {example}.")
    minor = int(found[2].replace(",", "") + (found[3] or "0" * digits))
    return -minor if found[1] else minor


_CURRENCY = re.compile(r"[A-Z]{3}")


@dataclass(frozen=True)
class Money:
    """An amount that is spent: minor units, not negative, of a currency (ISO 4217). Money(2500, "USD") is 25.00 USD."""

    minor: int
    currency: str

    def __post_init__(self) -> None:
        if type(self.minor) is not int or not 0 <= self.minor < 2**63:
            raise ValueError(f"Money is a whole number of minor units, 0 or more, not {self.minor!r}.")
        if not isinstance(self.currency, str) or not _CURRENCY.fullmatch(self.currency):
            raise ValueError(f"A currency is three capital letters, not {self.currency!r}.")

    def __str__(self) -> str:
        return f"{amount(self.minor, self.currency)} {self.currency}"
