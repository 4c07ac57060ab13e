"""Money is integer minor units and a currency; this spells it. Imports nothing of ours."""

_NO_DIGITS, _THREE_DIGITS = ("CLP", "ISK", "JPY", "KRW", "UGX", "VND"), ("BHD", "JOD", "KWD", "OMR", "TND")
MINOR_DIGITS = dict.fromkeys(_NO_DIGITS, 0) | dict.fromkeys(_THREE_DIGITS, 3)
"""Digits of the minor unit where they are not two (ISO 4217)."""


def amount(minor: int, currency: str) -> str:
    """The amount in major units, without its currency: 184000 USD is `1,840.00`, 500 JPY is `500`."""
    digits = MINOR_DIGITS.get(currency, 2)
    whole, rest = divmod(abs(minor), 10**digits)
    return ("-" if minor < 0 else "") + f"{whole:,}" + (f".{rest:0{digits}d}" if digits else "")
