"""Elementary functions without branches, so that loops over them are vectorised, and sums.

Those that `maths.ops` has are what kernels compute the mathematics with, see `maths`.

Each is within 1 or 2 ulp; of what is not finite they make what `math` does. Sums have a fixed
order, eight partial sums side by side, so that they are the same on every machine.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import ModuleType

import numpy as np

from model_core.compiled.jit import (
    Floats,
    bits_of,
    compiled,
    float_of,
    fma,
    inlined,
    linewise,
    whole,
)
from model_core.maths import bound, ops

INF = math.inf
ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it leaves the nearest integer in the low bits
LN2_HIGH = 6.93147180369123816490e-01
LN2_LOW = 1.90821492927058770002e-10
INVERSE_LN2 = 1.44269504088896338700e00
# Arguments of exp whose result is a normal number.
LOWEST = -708.0
HIGHEST = 709.0
LEAST_NORMAL = 2.2250738585072014e-308
TWO_54 = 18014398509481984.0
ERFC_CENTRE = 3.0


def maths(name: str) -> ModuleType:
    """A module of `model_core.maths`, its functions compiled into their callers."""
    return bound(name, sys.modules[__name__], inlined)


@inlined
def sqrt(x: float) -> float:
    """Square root: nan of what is below 0."""
    return math.sqrt(x)


maximum, minimum, where = (inlined(function) for function in (ops.maximum, ops.minimum, ops.where))


@inlined
def exp(x: float) -> float:
    """Exponential; 0 below -708, where it is less than 4e-308."""
    scale, less = _exp_parts(x)
    value = fma(less, scale, scale)
    value = 0.0 if x < LOWEST else value
    return INF if x > HIGHEST else value


@inlined
def expm1(x: float) -> float:
    """`exp(x) - 1`, of all digits where x is small."""
    scale, less = _exp_parts(x)
    value = fma(less, scale, scale - 1.0)
    return INF if x > HIGHEST else value


@inlined
def _exp_parts(x: float) -> tuple[float, float]:
    """A power of two and what `exp(x)` in its units is more than one, within the range of exp.

    Of nan the latter is nan.
    """
    y = LOWEST if x < LOWEST else x
    y = HIGHEST if y > HIGHEST else y
    shifted = fma(y, INVERSE_LN2, ROUND)
    k = shifted - ROUND
    r = fma(-k, LN2_LOW, fma(-k, LN2_HIGH, y))
    # |r| <= ln(2) / 2: `(exp(r) - 1 - r) / r^2` by its interpolation at Chebyshev's nodes, to 2e-17
    p = fma(2.510038549551032e-08, r, 2.7620088445409746e-07)
    p = fma(p, r, 2.7557268459997064e-06)
    p = fma(p, r, 2.4801521295954376e-05)
    p = fma(p, r, 0.00019841269863053618)
    p = fma(p, r, 0.0013888888917213717)
    p = fma(p, r, 0.008333333333330062)
    p = fma(p, r, 0.04166666666662413)
    p = fma(p, r, 0.16666666666666669)
    p = fma(p, r, 0.5)
    return float_of((bits_of(shifted) + 1023) << 52), fma(p * r, r, r)


@inlined
def log(x: float) -> float:
    """Natural logarithm: -inf of 0, nan of what is below."""
    small = x < LEAST_NORMAL
    value = _log_of_normal(x * TWO_54 if small else x, 54.0 if small else 0.0)
    value = value if x < INF else x
    value = value if x > 0.0 else math.nan
    return -INF if x == 0.0 else value


@inlined
def _log_of_normal(y: float, doublings: float) -> float:
    """Of a normal number above 0, that many times doubled."""
    k, f = _log_parts(y)
    return _log_series(k - doublings, f, f / (2.0 + f))


@inlined
def _log_parts(y: float) -> tuple[float, float]:
    """`k` and `f` of `y = 2^k (1 + f)`, 1 + f from sqrt(1/2) to sqrt(2)."""
    bits = bits_of(y)
    exponent = (bits - 0x3FE6A09E667F3BCD) & np.int64(-4503599627370496)
    k = float_of((exponent >> 52) + np.int64(0x4338000000000000)) - ROUND
    return k, float_of(bits - exponent) - 1.0


@inlined
def _log_series(k: float, f: float, s: float) -> float:
    """`k log(2) + log(1 + f)`; s: `f / (2 + f)`.

    log(1 + f) = 2 artanh(s), by the minimax polynomial of FreeBSD's e_log.c.
    """
    z = s * s
    w = z * z
    even = fma(w, 1.531383769920937332e-01, 2.222219843214978396e-01)
    even = w * fma(w, even, 3.999999999940941908e-01)
    odd = fma(w, 1.479819860511658591e-01, 1.818357216161805012e-01)
    odd = z * fma(w, fma(w, odd, 2.857142874366239149e-01), 6.666666666666735130e-01)
    half = 0.5 * f * f
    value: float = k * LN2_HIGH - ((half - (s * (half + (odd + even)) + k * LN2_LOW)) - f)
    return value


@inlined
def log1p(x: float) -> float:
    """`log(1 + x)` of x above -1; -inf where the sum rounds to 0.

    The logarithm of the sum as it was rounded, and what the rounding lost, to first order. That is
    not divided by the sum: it matters only where x is small, and the quotient is the same there.
    """
    u = 1.0 + x
    lost = x - (u - 1.0)
    value = _log_of_normal(u, 0.0) + (lost if x < 1.0 else 0.0)
    value = value if x < INF else x
    return -INF if u == 0.0 else value


@inlined
def log1p_and_inverse(x: float) -> tuple[float, float]:
    """`log(1 + x)` and `1 / (1 + x)` of x from 0 to 1e307, by one division."""
    u = 1.0 + x
    lost = x - (u - 1.0)
    k, f = _log_parts(u)
    beyond = 2.0 + f
    both = 1.0 / (u * beyond)
    value = _log_series(k, f, f * (u * both)) + (lost if x < 1.0 else 0.0)
    return value, beyond * both


@inlined
def logaddexp(a: float, b: float) -> float:
    """`log(exp(a) + exp(b))`, of which either may be -inf."""
    top = a if a > b else b
    apart = -abs(a - b)
    more = log1p(exp(apart))
    return top if top == -INF else top + more


@inlined
def half_erfc(z: float) -> float:
    """`erfc(z) / 2` for z >= 0: a polynomial in `q` for `(1 + 2 z) exp(z^2) erfc(z)`.

    Shepherd and Laframboise 1981, *Mathematics of Computation* 36; the coefficients are those of
    the Chebyshev series, cut where they are below 1e-16.
    """
    # 1 / ((z + c) (1 + 2 z)) is both quotients
    beyond = z + ERFC_CENTRE
    twice = 1.0 + 2.0 * z
    inverse = 1.0 / (beyond * twice)
    q = (z - ERFC_CENTRE) * (twice * inverse)
    w = q * q
    even = fma(8.392316806158101e-10, w, -8.21677208109158e-09)
    odd = fma(9.86189739514005e-10, w, -1.3312565711690716e-08)
    even = fma(even, w, 4.106192863513155e-08)
    odd = fma(odd, w, 1.0183535184232117e-07)
    even = fma(even, w, -1.4047351574980117e-07)
    odd = fma(odd, w, -6.165999740970803e-07)
    even = fma(even, w, 3.557580864121224e-07)
    odd = fma(odd, w, 3.4723699382822475e-06)
    even = fma(even, w, -7.308264649505584e-07)
    odd = fma(odd, w, -2.0100541706493743e-05)
    even = fma(even, w, 4.949195973344765e-06)
    odd = fma(odd, w, 0.00012509934225340342)
    even = fma(even, w, -0.00010515971940590749)
    odd = fma(odd, w, -0.0007798322696065087)
    even = fma(even, w, 0.0018886903449694085)
    odd = fma(odd, w, 0.002529391815687182)
    even = fma(even, w, -0.02377051491716842)
    odd = fma(odd, w, 0.06830802734401044)
    even = fma(even, w, -0.11927366341538653)
    odd = fma(odd, w, 0.12964515870275936)
    even = fma(even, w, -0.04756229435344919)
    odd = fma(odd, w, -0.13562110612458117)
    even = fma(even, w, 1.2530080582697296)
    square = z * z
    rest = fma(z, z, -square)
    tail: float = 0.5 * exp(-square) * (1.0 - rest) * fma(odd, q, even) * (beyond * inverse)
    return tail


@compiled
def ndtri(p: float) -> float:
    """Quantile of the standard normal: Wichura 1988, *Applied Statistics* 37, AS 241."""
    q = p - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        above = 2509.0809287301226727 * r + 33430.575583588128105
        above = ((above * r + 67265.770927008700853) * r + 45921.953931549871457) * r
        above = ((above + 13731.693765509461125) * r + 1971.5909503065514427) * r
        above = (above + 133.14166789178437745) * r + 3.387132872796366608
        below = 5226.495278852854561 * r + 28729.085735721942674
        below = ((below * r + 39307.89580009271061) * r + 21213.794301586595867) * r
        below = ((below + 5394.1960214247511077) * r + 687.1870074920579083) * r
        below = (below + 42.313330701600911252) * r + 1.0
        return q * above / below
    tail = p if q < 0 else 1.0 - p
    value = _far_quantile(tail) if tail > 0 else INF
    return -value if q < 0 else value


@compiled
def _far_quantile(tail: float) -> float:
    """Quantile of the upper tail's probability, above 0 and below 0.075."""
    r = math.sqrt(-math.log(tail))
    if r <= 5.0:
        r -= 1.6
        above = 7.7454501427834140764e-4 * r + 0.0227238449892691845833
        above = ((above * r + 0.24178072517745061177) * r + 1.27045825245236838258) * r
        above = ((above + 3.64784832476320460504) * r + 5.7694972214606914055) * r
        above = (above + 4.6303378461565452959) * r + 1.42343711074968357734
        below = 1.05075007164441684324e-9 * r + 5.475938084995344946e-4
        below = ((below * r + 0.0151986665636164571966) * r + 0.14810397642748007459) * r
        below = ((below + 0.68976733498510000455) * r + 1.6763848301838038494) * r
        below = (below + 2.05319162663775882187) * r + 1.0
        return above / below
    r -= 5.0
    above = 2.01033439929228813265e-7 * r + 2.71155556874348757815e-5
    above = ((above * r + 0.0012426609473880784386) * r + 0.026532189526576123093) * r
    above = ((above + 0.29656057182850489123) * r + 1.7848265399172913358) * r
    above = (above + 5.4637849111641143699) * r + 6.6579046435011037772
    below = 2.04426310338993978564e-15 * r + 1.4215117583164458887e-7
    below = ((below * r + 1.8463183175100546818e-5) * r + 7.868691311456132591e-4) * r
    below = ((below + 0.0148753612908506148525) * r + 0.13692988092273580531) * r
    below = (below + 0.59983220655588793769) * r + 1.0
    return above / below


def _folded(combine: Callable[[float, float], float], start: float) -> Callable[..., float]:
    """A sum, or the like, of the first n values of a line; combine: of two."""

    @compiled
    def fold(values: Floats, n: int) -> float:
        a = b = c = d = e = f = g = h = start
        whole = n - n % 8
        for i in range(0, whole, 8):
            a = combine(a, values[i])
            b = combine(b, values[i + 1])
            c = combine(c, values[i + 2])
            d = combine(d, values[i + 3])
            e = combine(e, values[i + 4])
            f = combine(f, values[i + 5])
            g = combine(g, values[i + 6])
            h = combine(h, values[i + 7])
        first = combine(combine(a, e), combine(c, g))
        result = combine(first, combine(combine(b, f), combine(d, h)))
        for i in range(whole, n):
            result = combine(result, values[i])
        return result

    return fold


total = _folded(inlined(lambda a, b: a + b), 0.0)
# A nan is passed over.
largest = _folded(inlined(lambda a, b: b if b > a else a), -INF)
smallest = _folded(inlined(lambda a, b: b if b < a else a), INF)


@compiled
def dot(left: Floats, right: Floats, n: int) -> float:
    """Sum of the first n products."""
    a = b = c = d = e = f = g = h = 0.0
    whole = n - n % 8
    for i in range(0, whole, 8):
        a += left[i] * right[i]
        b += left[i + 1] * right[i + 1]
        c += left[i + 2] * right[i + 2]
        d += left[i + 3] * right[i + 3]
        e += left[i + 4] * right[i + 4]
        f += left[i + 5] * right[i + 5]
        g += left[i + 6] * right[i + 6]
        h += left[i + 7] * right[i + 7]
    result = ((a + e) + (c + g)) + ((b + f) + (d + h))
    for i in range(whole, n):
        result += left[i] * right[i]
    return result


@linewise
def copy(values: Floats, out: Floats) -> None:
    """As many as `out` has; by numba it would take memory, as the two might overlap."""
    for i in range(out.shape[0]):
        out[i] = values[i]


@linewise
def fill(row: Floats, value: float) -> None:
    """Set all; numba's own assignment to a slice is a slow loop."""
    for i in range(row.shape[0]):
        row[i] = value


@compiled
def place_of(values: Floats, value: float, n: int) -> int:
    """First place of a value among the first n; 0 if there is none."""
    for i in range(n):
        if values[i] == value:
            return i
    return 0


@linewise
def exp_of(values: Floats, shift: float, out: Floats, n: int) -> None:
    """`exp(values - shift)`."""
    for i in range(n):
        out[i] = exp(values[i] - shift)


@linewise
def shift(values: Floats, by: float, out: Floats, n: int) -> None:
    """`values + by`."""
    for i in range(n):
        out[i] = values[i] + by


@linewise
def scale(by: float, values: Floats, n: int) -> None:
    """Multiply by a number."""
    for i in range(n):
        values[i] *= by


@linewise
def add(left: Floats, right: Floats, out: Floats) -> None:
    """Sums of two lines."""
    for i in range(whole(out)):
        out[i] = left[i] + right[i]


@linewise
def multiply(left: Floats, right: Floats, out: Floats) -> None:
    """Products of two lines."""
    for i in range(whole(out)):
        out[i] = left[i] * right[i]


@linewise
def add_product(left: Floats, right: Floats, out: Floats) -> None:
    """Add the products of two lines."""
    for i in range(whole(out)):
        out[i] += left[i] * right[i]
