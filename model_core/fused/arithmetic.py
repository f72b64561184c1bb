"""Elementary functions that Triton lacks, in float64, and what a vector over slots is asked."""

from __future__ import annotations

import triton.language as tl

from model_core.fused.jit import compiled

INF = tl.constexpr(float("inf"))
HALF_LOG_2PI = tl.constexpr(0.9189385332046727)
ROOT_2_PI = tl.constexpr(2.5066282746310002)
ROOT_HALF = tl.constexpr(0.7071067811865476)


@compiled
def finite(x: tl.tensor) -> tl.tensor:
    """Whether a number is neither infinite nor nan."""
    return tl.abs(x) < INF


@compiled
def log(x: tl.tensor) -> tl.tensor:
    """Natural logarithm; -inf of 0 and below."""
    return tl.where(x > 0, tl.log(tl.where(x > 0, x, 1.0)), -INF)


@compiled
def log1p(x: tl.tensor) -> tl.tensor:
    """`log(1 + x)` of a finite x; -inf of -1."""
    u = 1.0 + x
    some = tl.where(u == 0, 1.0, u)
    return tl.where(u == 0, -INF, tl.log(some) + (x - (u - 1.0)) / some)


@compiled
def expm1(x: tl.tensor) -> tl.tensor:
    """`exp(x) - 1` of x at most 0 (Kahan)."""
    u = tl.exp(x)
    usual = (u < 1.0) & (u > 1e-300)
    some = tl.where(usual, u, 0.5)
    return tl.where(usual, (some - 1.0) * x / tl.log(some), tl.where(u == 1.0, x, -1.0))


@compiled
def at(values: tl.tensor, places: tl.tensor, place: tl.tensor) -> tl.tensor:
    """The value at a place of a vector, of which `places` are 0, 1, ..."""
    return tl.sum(tl.where(places == place, values, 0), 0)


@compiled
def log_sum(values: tl.tensor) -> tl.tensor:
    """Logarithm of the sum of exponentials; -inf of none."""
    top = tl.max(values, 0)
    some = tl.where(top == -INF, 0.0, top)
    return tl.where(top == -INF, -INF, some + log(tl.sum(tl.exp(values - some), 0)))


@compiled
def student_t_norm(a: tl.tensor) -> tl.tensor:
    """Log density at zero of Student's t of `2 a` degrees of freedom, for a >= 1/4.

    As `compiled.arithmetic.student_t_norm`.
    """
    p = (a * (a + 1.0)) * ((a + 2.0) * (a + 3.0))
    p = p * (((a + 4.0) * (a + 5.0)) * ((a + 6.0) * (a + 7.0)))
    q = ((a + 0.5) * (a + 1.5)) * ((a + 2.5) * (a + 3.5))
    q = q * (((a + 4.5) * (a + 5.5)) * ((a + 6.5) * (a + 7.5)))
    ratio = p / q
    b = a + 8.0
    x = 1.0 / b
    w = x * x
    series = w * (-5461 / 425984.0) + 691 / 180224.0
    series = w * series - 31 / 18432.0
    series = w * series + 17 / 14336.0
    series = w * series - 1 / 640.0
    series = w * series + 1 / 192.0
    series = (w * series - 0.125) * x
    return series + 0.5 * tl.log(ratio * ratio * (b / a)) - HALF_LOG_2PI


@compiled
def half_erfc(z: tl.tensor) -> tl.tensor:
    """`erfc(z) / 2` for z >= 0, as `compiled.arithmetic.half_erfc`."""
    q = (z - 3.0) / (z + 3.0)
    p = 8.392316806158101e-10 * q + 9.86189739514005e-10
    p = p * q - 8.21677208109158e-09
    p = p * q - 1.3312565711690716e-08
    p = p * q + 4.106192863513155e-08
    p = p * q + 1.0183535184232117e-07
    p = p * q - 1.4047351574980117e-07
    p = p * q - 6.165999740970803e-07
    p = p * q + 3.557580864121224e-07
    p = p * q + 3.4723699382822475e-06
    p = p * q - 7.308264649505584e-07
    p = p * q - 2.0100541706493743e-05
    p = p * q + 4.949195973344765e-06
    p = p * q + 0.00012509934225340342
    p = p * q - 0.00010515971940590749
    p = p * q - 0.0007798322696065087
    p = p * q + 0.0018886903449694085
    p = p * q + 0.002529391815687182
    p = p * q - 0.02377051491716842
    p = p * q + 0.06830802734401044
    p = p * q - 0.11927366341538653
    p = p * q + 0.12964515870275936
    p = p * q - 0.04756229435344919
    p = p * q - 0.13562110612458117
    p = p * q + 1.2530080582697296
    return 0.5 * tl.exp(-(z * z)) * p / (1.0 + 2.0 * z)


@compiled
def ndtri(p: tl.tensor) -> tl.tensor:
    """Quantile of the standard normal, as `compiled.arithmetic.ndtri` (Wichura 1988, AS 241)."""
    q = p - 0.5
    near = tl.abs(q) <= 0.425
    r = 0.180625 - tl.where(near, q * q, 0.0)
    above = 2509.0809287301226727 * r + 33430.575583588128105
    above = ((above * r + 67265.770927008700853) * r + 45921.953931549871457) * r
    above = ((above + 13731.693765509461125) * r + 1971.5909503065514427) * r
    above = (above + 133.14166789178437745) * r + 3.387132872796366608
    below = 5226.495278852854561 * r + 28729.085735721942674
    below = ((below * r + 39307.89580009271061) * r + 21213.794301586595867) * r
    below = ((below + 5394.1960214247511077) * r + 687.1870074920579083) * r
    below = (below + 42.313330701600911252) * r + 1.0
    far = _far_quantile(tl.where(near, 0.05, tl.where(q < 0, p, 1.0 - p)))
    return tl.where(near, q * above / below, tl.where(q < 0, -far, far))


@compiled
def _far_quantile(tail: tl.tensor) -> tl.tensor:
    """Quantile of the upper tail's probability, above 0 and below 0.075."""
    root = tl.sqrt(-tl.log(tl.where(tail > 0, tail, 0.05)))
    r = root - 1.6
    above = 7.7454501427834140764e-4 * r + 0.0227238449892691845833
    above = ((above * r + 0.24178072517745061177) * r + 1.27045825245236838258) * r
    above = ((above + 3.64784832476320460504) * r + 5.7694972214606914055) * r
    above = (above + 4.6303378461565452959) * r + 1.42343711074968357734
    below = 1.05075007164441684324e-9 * r + 5.475938084995344946e-4
    below = ((below * r + 0.0151986665636164571966) * r + 0.14810397642748007459) * r
    below = ((below + 0.68976733498510000455) * r + 1.6763848301838038494) * r
    below = (below + 2.05319162663775882187) * r + 1.0
    usual = above / below
    r = root - 5.0
    above = 2.01033439929228813265e-7 * r + 2.71155556874348757815e-5
    above = ((above * r + 0.0012426609473880784386) * r + 0.026532189526576123093) * r
    above = ((above + 0.29656057182850489123) * r + 1.7848265399172913358) * r
    above = (above + 5.4637849111641143699) * r + 6.6579046435011037772
    below = 2.04426310338993978564e-15 * r + 1.4215117583164458887e-7
    below = ((below * r + 1.8463183175100546818e-5) * r + 7.868691311456132591e-4) * r
    below = ((below + 0.0148753612908506148525) * r + 0.13692988092273580531) * r
    below = (below + 0.59983220655588793769) * r + 1.0
    return tl.where(tail > 0, tl.where(root <= 5.0, usual, above / below), INF)
