"""The compiled loop of numerals.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.core.compiled import compiled

SPACE, MINUS, PLUS, POINT, COMMA, ZERO, NINE, EXPONENT, LARGE_EXPONENT = (ord(sign) for sign in " -+.,09eE")
POWERS = 10.0 ** np.arange(23)  # exact
MOST_DIGITS = 18  # from the first that is not 0: what an integer of 64 bits holds
EXACT = 2**53  # up to which a float64 is a whole number exactly
SLIGHTLY = 2.0**-50  # more than what a larger one over a power of ten can be off by


@compiled
def read_numbers(text: Any, start: int, end: int, values: Any) -> int:
    """How many numbers there are; -1 where something else is there, or more than there is room for.

    A number is digits over a power of ten. With many digits that is off by two units in the last place of a float64 at
    most; where a float32 would show it, which is halfway between two of them, the number is left to the whole reader.
    """
    count = 0
    place = start
    while True:
        while place < end and text[place] == SPACE:
            place += 1
        if place == end:
            return count if count == 0 else -1
        is_negative = text[place] == MINUS
        if is_negative:
            place += 1
        first = place
        digits = length = 0
        while place < end and ZERO <= text[place] <= NINE:
            digits = digits * 10 + (int(text[place]) - ZERO)
            length += length > 0 or text[place] != ZERO  # digits themselves may have gone round
            place += 1
        if place == first or (place > first + 1 and text[first] == ZERO):
            return -1
        power = 0
        is_whole = True
        if place < end and text[place] == POINT:
            is_whole = False
            place += 1
            first = place
            while place < end and ZERO <= text[place] <= NINE:
                digits = digits * 10 + (int(text[place]) - ZERO)
                length += length > 0 or text[place] != ZERO
                place += 1
            power = first - place
            if power == 0:
                return -1
        if length > MOST_DIGITS or count == len(values):
            return -1
        if place < end and (text[place] == EXPONENT or text[place] == LARGE_EXPONENT):
            is_whole = False
            place += 1
            is_small = place < end and text[place] == MINUS
            if place < end and (is_small or text[place] == PLUS):
                place += 1
            first = place
            exponent = 0
            while place < end and place - first < 3 and ZERO <= text[place] <= NINE:
                exponent = exponent * 10 + (int(text[place]) - ZERO)
                place += 1
            if place == first:
                return -1
            power += -exponent if is_small else exponent
        if not -len(POWERS) < power < len(POWERS):
            return -1
        value = digits * POWERS[power] if power >= 0 else digits / POWERS[-power]
        if digits > EXACT and np.float32(value * (1 - SLIGHTLY)) != np.float32(value * (1 + SLIGHTLY)):
            return -1
        if is_negative and not (is_whole and digits == 0):  # a whole number 0 has no sign, as the whole reader has it
            value = -value
        values[count] = value
        count += 1
        while place < end and text[place] == SPACE:
            place += 1
        if place == end:
            return count
        if text[place] != COMMA:
            return -1
        place += 1
