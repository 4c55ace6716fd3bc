/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_VECTOR_MATH_H
#define AGENT_RUNTIME_BACKEND_CPU_VECTOR_MATH_H

/*
 * exp, log and functions made of them, on sixteen lanes. They do not use libm, because its results
 * can differ from processor to processor; ours differ only from level to level.
 *
 * exp: x = n·ln 2 + r, |r| <= ln 2 / 2, e^r by its Taylor series to r^7/7! (the rest is below
 * 2^-28), ln 2 in two parts so that n·ln 2 loses nothing (Cody and Waite 1980). log: x = 2^n·m, m
 * in [√½, √2), log m = 2·artanh((m - 1)/(m + 1)). Both within 2 ulp
 * (tests/numerics/test_vector_math.c).
 */

#include "agent/runtime/backend/cpu/vector.h"

/* 0 below -87.33, inf above 88.72, NaN for NaN. */
V_INLINE v16 v_exp(v16 x)
{
    const v16 low = v_set(-87.336544f), high = v_set(88.72284f);
    v16 y = v_max(low, v_min(high, x)); /* NaN stays: it is the second operand */
    v16 n = v_round(v_mul(y, v_set(1.44269504f)));
    v16 r = v_fma(n, v_set(-0.693359375f), y), p, half;

    r = v_fma(n, v_set(2.12194440e-4f), r);
    p = v_set(1.0f / 5040);
    p = v_fma(p, r, v_set(1.0f / 720));
    p = v_fma(p, r, v_set(1.0f / 120));
    p = v_fma(p, r, v_set(1.0f / 24));
    p = v_fma(p, r, v_set(1.0f / 6));
    p = v_fma(p, r, v_set(0.5f));
    p = v_fma(v_mul(r, r), p, r);
    p = v_add(p, v_set(1.0f));
    /* In two factors: 2^128 is no float, though e^88.72 is. */
    half = v_round(v_mul(n, v_set(0.5f)));
    p = v_mul(v_mul(p, v_power2(half)), v_power2(v_sub(n, half)));
    p = v_select(v_less(x, low), v_zero(), p);
    return v_select(v_less(high, x), v_set(INFINITY), p);
}

/* For positive normal x, inf and NaN. Results for other x are undefined. */
V_INLINE v16 v_log(v16 x)
{
    v16 m = v_mantissa(x), n = v_exponent(x), s, z, p;
    v16_mask large = v_less(v_set(1.41421356f), m);

    m = v_select(large, v_mul(m, v_set(0.5f)), m);
    n = v_select(large, v_add(n, v_set(1.0f)), n);
    m = v_sub(m, v_set(1.0f)); /* exact */
    s = v_div(m, v_add(m, v_set(2.0f)));
    z = v_mul(s, s);
    p = v_set(2.0f / 9);
    p = v_fma(p, z, v_set(2.0f / 7));
    p = v_fma(p, z, v_set(2.0f / 5));
    p = v_fma(p, z, v_set(2.0f / 3));
    /* 2s + s·z·p with 2s = m - s·m: the large part without the rounding of s. */
    p = v_fma(n, v_set(-2.12194440e-4f), v_mul(s, v_sub(v_mul(z, p), m)));
    p = v_add(p, m);
    p = v_fma(n, v_set(0.693359375f), p);
    return v_select(v_less(x, v_set(INFINITY)), p, x);
}

V_INLINE v16 v_sigmoid(v16 x)
{
    v16 one = v_set(1.0f);

    return v_div(one, v_add(one, v_exp(v_sub(v_zero(), x))));
}

/*
 * GELU's tanh form (Hendrycks and Gimpel, 1606.08415): x/2·(1 + tanh u) = x·sigmoid(2u) with
 * u = √(2/π)·(x + 0.044715·x³).
 */
#define V_GELU_A 1.5957691216f    /* 2·√(2/π) */
#define V_GELU_B 0.0713548162726f /* that · 0.044715 */

V_INLINE v16 v_gelu(v16 x)
{
    v16 twice_u = v_mul(x, v_fma(v_set(V_GELU_B), v_mul(x, x), v_set(V_GELU_A)));

    return v_mul(x, v_sigmoid(twice_u));
}

/* Its derivative: s + x·s·(1 - s)·(2u)'. */
V_INLINE v16 v_gelu_slope(v16 x)
{
    v16 square = v_mul(x, x);
    v16 s = v_sigmoid(v_mul(x, v_fma(v_set(V_GELU_B), square, v_set(V_GELU_A))));
    v16 slope = v_fma(v_set(3 * V_GELU_B), square, v_set(V_GELU_A));
    v16 bell = v_mul(s, v_sub(v_set(1.0f), s));

    return v_fma(v_mul(x, bell), slope, s);
}

/*
 * erf: x·P(x²) below 1, else 1 - e^-Q(|x|) with Q ≈ -log erfc; P and Q are Chebyshev fits over [0,
 * 1] and [1, 4], beyond 4 it is 1. Within 2e-7.
 */
V_INLINE v16 v_erf(v16 x)
{
    static const float p[] = {1.12837917f,    -0.376126269f,    0.112835975f,   -0.0268543288f,
                              0.00518931194f, -0.000801885499f, 7.88249711e-05f};
    static const float q[] = {-0.000303212967f, 1.13016668f,     0.631937094f,
                              0.109978245f,     -0.0263647174f,  0.00474022234f,
                              -0.000592769537f, 4.55906223e-05f, -1.6140616e-06f};
    v16 size = v_max(x, v_sub(v_zero(), x)), square = v_mul(x, x);
    v16 t = v_min(v_set(4.0f), size), near = v_set(p[6]), far = v_set(q[8]);

    for (int i = 5; i >= 0; i--)
        near = v_fma(near, square, v_set(p[i]));
    for (int i = 7; i >= 0; i--)
        far = v_fma(far, t, v_set(q[i]));
    far = v_sub(v_set(1.0f), v_exp(v_sub(v_zero(), far)));
    far = v_select(v_less(v_set(4.0f), size), v_set(1.0f), far);
    far = v_select(v_less(x, v_zero()), v_sub(v_zero(), far), far);
    near = v_mul(x, near);
    return v_select(v_less(v_set(1.0f), size), far, near); /* NaN is in near */
}

/* GELU itself, x·Φ(x), and its derivative Φ(x) + x·φ(x). */
V_INLINE v16 v_normal_below(v16 x)
{
    return v_fma(v_set(0.5f), v_erf(v_mul(x, v_set(0.707106781f))), v_set(0.5f));
}

V_INLINE v16 v_gelu_exact(v16 x)
{
    return v_mul(x, v_normal_below(x));
}

V_INLINE v16 v_gelu_exact_slope(v16 x)
{
    v16 density = v_mul(v_set(0.398942280f), v_exp(v_mul(v_set(-0.5f), v_mul(x, x))));

    return v_fma(x, density, v_normal_below(x));
}

#endif
