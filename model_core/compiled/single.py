"""Elementary functions in single precision, within 1e-7, and what a Student-t needs of them.

They take a third of the time of those in double precision: a processor takes twice as many numbers
at once, and polynomials are half as long. The mathematics is that of `arithmetic` and of
`maths.special.student_t`. Constants are numbers of single precision: numba would turn a product
with another into a double.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from model_core.compiled.jit import bits_of, float_of, fma, inlined

Single = np.float32
Bits = np.int32  # numba takes sums of them for 64 bits
ZERO, HALF, ONE, TWO, THREE = (Single(value) for value in (0.0, 0.5, 1.0, 2.0, 3.0))
ROUND = Single(12582912.0)  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits
LN2_HIGH, LN2_LOW, LN2 = Single(0.693359375), Single(-2.12194440e-4), Single(math.log(2.0))
INVERSE_LN2 = Single(1 / math.log(2.0))
LEAST = Single(-40.0)  # argument of exp: what is less is 0, and no product of it denormal
EXPONENT, MANTISSA, ABOVE_MANTISSA = Bits(127), Bits(23), Bits(-8388608)
BITS_OF_ROOT_HALF = Bits(0x3F3504F3)
EXP_2, EXP_3, EXP_4, EXP_5, EXP_6, EXP_7 = (Single(1 / math.factorial(k)) for k in range(2, 8))
LOG_3, LOG_5, LOG_7, LOG_9 = (Single(2 / k) for k in (3, 5, 7, 9))
# Of the series of `arithmetic.half_erfc`, cut where it is below 5e-9.
(
    ERFC_0, ERFC_1, ERFC_2, ERFC_3, ERFC_4, ERFC_5, ERFC_6, ERFC_7, ERFC_8, ERFC_9, ERFC_10,
    ERFC_11,
) = (
    Single(value)
    for value in (
        1.2530080563677553, -0.13562106940027358, -0.047562156927522234, 0.1296441143440908,
        -0.11927527528221818, 0.06831656777106654, -0.02376357643956415, 0.002499116869800944,
        0.0018750791238557594, -0.0007264536792424898, -9.254516690426214e-05,
        7.731024232020487e-05,
    )
)  # fmt: skip
BEND_1, BEND_2, BEND_3, BEND_4, BEND_5 = (Single(k) for k in (-0.4, -3.3, -24.0, -85.5, 0.8))
ONE_AND_HALF, TWO_AND_HALF, THREE_AND_HALF, FOUR = (Single(k) for k in (1.5, 2.5, 3.5, 4.0))
MORE_FREEDOM, HILL_SQUARE, HILL_PLUS = Single(9.5), Single(48.0), Single(100.0)
ROOT_HALF = Single(math.sqrt(0.5))


@inlined
def exp(x: Any) -> Any:
    """Exponential of x <= 0."""
    y = x if x > LEAST else LEAST
    shifted = fma(y, INVERSE_LN2, ROUND)
    k = shifted - ROUND
    r = fma(-k, LN2_LOW, fma(-k, LN2_HIGH, y))
    square = r * r
    even = fma(fma(EXP_6, square, EXP_4), square, EXP_2)
    odd = fma(fma(EXP_7, square, EXP_5), square, EXP_3)
    scale = float_of(Bits(Bits(bits_of(shifted) + EXPONENT) << MANTISSA))
    value = (fma(fma(odd, r, even), square, r) + ONE) * scale
    return ZERO if x < LEAST else value


@inlined
def log1p_and_inverse(x: Any) -> tuple[Any, Any]:
    """`log(1 + x)` and `1 / (1 + x)` of x >= 0, by one division."""
    u = ONE + x
    lost = x - (u - ONE)
    bits = bits_of(u)
    exponent = Bits(Bits(bits - BITS_OF_ROOT_HALF) & ABOVE_MANTISSA)
    f = float_of(Bits(bits - exponent)) - ONE
    beyond = TWO + f
    both = ONE / (u * beyond)
    s = f * (u * both)
    z = s * s
    series = fma(fma(fma(fma(LOG_9, z, LOG_7), z, LOG_5), z, LOG_3), z, TWO)
    value = fma(Single(exponent >> MANTISSA), LN2, s * series)
    return value + (lost if x < ONE else ZERO), beyond * both


@inlined
def half_erfc(z: Any) -> Any:
    """`erfc(z) / 2` of z >= 0."""
    beyond = z + THREE
    twice = fma(TWO, z, ONE)
    inverse = ONE / (beyond * twice)
    q = (z - THREE) * (twice * inverse)
    w = q * q
    even = fma(fma(fma(fma(fma(ERFC_10, w, ERFC_8), w, ERFC_6), w, ERFC_4), w, ERFC_2), w, ERFC_0)
    odd = fma(fma(fma(fma(fma(ERFC_11, w, ERFC_9), w, ERFC_7), w, ERFC_5), w, ERFC_3), w, ERFC_1)
    return HALF * exp(-z * z) * fma(odd, q, even) * (beyond * inverse)


@inlined
def student_t_bent(more: Any, hill: Any, hill_b: Any, slope: Any, level: Any) -> Any:
    """As in `maths.special`."""
    y = hill * more
    poly = ((BEND_1 * y + BEND_2) * y + BEND_3) * y + BEND_4
    bend = y + poly / (hill_b + BEND_5 * y * y)
    return (level + bend * slope) * np.sqrt(y)


@inlined
def student_t_table(half: Any) -> tuple[Any, ...]:
    """As in `maths.special`, with two divisions for four."""
    one, two, three, four = half + ONE, half + TWO, half + THREE, half + FOUR
    near, far = ONE / (one * two), ONE / (three * four)
    a = HALF / half
    b = a * ((half + HALF) * (two * near))
    c = b * ((half + ONE_AND_HALF) * (one * near))
    d = c * ((half + TWO_AND_HALF) * (four * far))
    e = d * ((half + THREE_AND_HALF) * (three * far))
    hill = TWO * half + MORE_FREEDOM
    square = HILL_SQUARE * hill * hill
    slope = ROOT_HALF / square
    return a, b, c, d, e, hill, square + HILL_PLUS, slope, ROOT_HALF + THREE * slope
