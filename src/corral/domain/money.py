"""Money (spec 10, "Prices, usage, budgets"): whole millionths of a currency's unit, never floats.

In JSON an amount is a decimal string ("2.50"): at most six decimals, no sign, no exponent.
"""

from __future__ import annotations

import re

from corral.domain.errors import Refusal
from corral.domain.ids import shown

MILLION = 1_000_000
DECIMALS = 6
RATE_MAX = 1_000_000
"""The most that one hour or month of something may cost."""
AMOUNT_MAX = 1_000_000_000_000
"""The most that a budget may be."""

_AMOUNT = re.compile(r"([0-9]{1,13})(?:\.([0-9]{1,6}))?")

CURRENCIES = frozenset(
    [
        "AED",
        "AFN",
        "ALL",
        "AMD",
        "AOA",
        "ARS",
        "AUD",
        "AWG",
        "AZN",
        "BAM",
        "BBD",
        "BDT",
        "BHD",
        "BIF",
        "BMD",
        "BND",
        "BOB",
        "BRL",
        "BSD",
        "BTN",
        "BWP",
        "BYN",
        "BZD",
        "CAD",
        "CDF",
        "CHF",
        "CLP",
        "CNY",
        "COP",
        "CRC",
        "CUP",
        "CVE",
        "CZK",
        "DJF",
        "DKK",
        "DOP",
        "DZD",
        "EGP",
        "ERN",
        "ETB",
        "EUR",
        "FJD",
        "FKP",
        "GBP",
        "GEL",
        "GHS",
        "GIP",
        "GMD",
        "GNF",
        "GTQ",
        "GYD",
        "HKD",
        "HNL",
        "HTG",
        "HUF",
        "IDR",
        "ILS",
        "INR",
        "IQD",
        "IRR",
        "ISK",
        "JMD",
        "JOD",
        "JPY",
        "KES",
        "KGS",
        "KHR",
        "KMF",
        "KPW",
        "KRW",
        "KWD",
        "KYD",
        "KZT",
        "LAK",
        "LBP",
        "LKR",
        "LRD",
        "LSL",
        "LYD",
        "MAD",
        "MDL",
        "MGA",
        "MKD",
        "MMK",
        "MNT",
        "MOP",
        "MRU",
        "MUR",
        "MVR",
        "MWK",
        "MXN",
        "MYR",
        "MZN",
        "NAD",
        "NGN",
        "NIO",
        "NOK",
        "NPR",
        "NZD",
        "OMR",
        "PAB",
        "PEN",
        "PGK",
        "PHP",
        "PKR",
        "PLN",
        "PYG",
        "QAR",
        "RON",
        "RSD",
        "RUB",
        "RWF",
        "SAR",
        "SBD",
        "SCR",
        "SDG",
        "SEK",
        "SGD",
        "SHP",
        "SLE",
        "SOS",
        "SRD",
        "SSP",
        "STN",
        "SVC",
        "SYP",
        "SZL",
        "THB",
        "TJS",
        "TMT",
        "TND",
        "TOP",
        "TRY",
        "TTD",
        "TWD",
        "TZS",
        "UAH",
        "UGX",
        "USD",
        "UYU",
        "UZS",
        "VED",
        "VES",
        "VND",
        "VUV",
        "WST",
        "XAF",
        "XCD",
        "XCG",
        "XOF",
        "XPF",
        "YER",
        "ZAR",
        "ZMW",
        "ZWG",
    ]
)
"""ISO 4217's codes of currencies in use."""


def millionths(text: str, field: str, most: int) -> int:
    """Return an amount from 0 to `most` units, in millionths. Errors: `INVALID_REQUEST`, naming `field`."""
    found = _AMOUNT.fullmatch(text)
    if found is not None:
        amount = int(found[1]) * MILLION + int((found[2] or "").ljust(DECIMALS, "0"))
        if amount <= most * MILLION:
            return amount
    raise Refusal(
        "INVALID_REQUEST",
        f'{field}: {shown(text)} is no amount. Write a decimal string such as "2.50": 0 to {most}, at most '
        f"{DECIMALS} decimals.",
        field=field,
    )


def text(amount: int) -> str:
    """Return millionths as a decimal string, with as many decimals as it needs and at least two."""
    whole, rest = divmod(amount, MILLION)
    decimals = f"{rest:0{DECIMALS}}".rstrip("0")
    return f"{whole}.{decimals:0<2}"


def currency(code: str) -> str:
    """Return a currency's code. Errors: `INVALID_REQUEST`."""
    if code not in CURRENCIES:
        raise Refusal(
            "INVALID_REQUEST",
            f"currency: {shown(code)} is no ISO 4217 code of a currency in use. Write EUR, USD, CHF …",
            field="currency",
        )
    return code
