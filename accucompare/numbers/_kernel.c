/* One pass over a block of a tensor, or of a pair of tensors: what statistics.py and compare/measure.py do with NumPy.

   A block is taken in chunks, as numbers/sums.py describes; each chunk's sums are handed out and added exactly in Python, so no
   result depends on where blocks end. Inside a chunk, element i is added in lane i % LANES, so that every processor adds in the
   same order whatever its vectors' width (contraction to fused multiply-add is off). A chunk whose sums are not finite is done
   again with NaN and Inf counted and set aside.

   The file is plain C; loops over lanes are what compilers make vector instructions of. (The vector extensions of GCC are no
   way: it does comparisons of vectors wider than the processor's one by one, 14 times slower.) On x86-64 Linux, GCC adds versions
   for wider vectors, chosen when the module is loaded. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { STRIP = 512, LANES = 8, SUMS = 8 };

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && !defined(ACCUCOMPARE_NO_CLONES)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif
#define INLINE static inline __attribute__((always_inline))
/* A short loop that GCC must not unroll before its vectorizer sees it. */
#define EACH_LANE _Pragma("GCC unroll 1") for (int l = 0; l < LANES; l++)

/* Element types; the numbers are numbers/kernel.py's. */
enum { F64, F32, F16, BF16, I8, I16, I32, U8, U16, U32, TYPES };
static const size_t WIDTH[TYPES] = {8, 4, 2, 2, 1, 2, 4, 1, 2, 4};
/* Whether float holds every value. */
static const int FITS_FLOAT[TYPES] = {0, 1, 1, 1, 1, 1, 0, 1, 1, 0};

typedef struct {
    double atol, rtol;   /* rtol < 0: no tolerance was asked for */
    double saturation;   /* the candidate type's largest value; 0: it has none */
    int golden, candidate;
} Request;

/* What was found so far; seen: how many positions that was. */
typedef struct {
    double max_abs, max_rel, used, needed, largest_golden, largest_candidate, golden_at_max, candidate_at_max;
    int64_t seen, index, first_mismatch, compared, over_tolerance, over_1e3, over_5e3;
    int64_t golden_nan, candidate_nan, golden_inf, candidate_inf, mismatch, saturated;
    uint64_t ulps;
} Result;

INLINE double larger(double a, double b) { return a > b ? a : b; }
INLINE double maximum(const double *v) { double r = v[0]; for (int l = 1; l < LANES; l++) r = larger(v[l], r); return r; }
INLINE int64_t count(const int64_t *v) { int64_t r = 0; for (int l = 0; l < LANES; l++) r += v[l]; return r; }
/* False only if the rounded quotient a / b is not above a limit. As rounding keeps order, a > limit * b leaves a >= that product
   rounded; floats are far from where double has so few digits that a slightly smaller limit could make the two equal. */
INLINE int may_exceed(double a, double limit, double b, int type) {
    return type == F64 ? a >= larger(0x1p-1074, limit * b) : a > limit * (1 - 0x1p-50) * b;
}
/* Lanes are added in pairs. */
INLINE double sum(const double *v) { return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7])); }

INLINE float from_half(uint16_t h) {
    uint32_t bits = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
    float value;
    memcpy(&value, &bits, 4);
    value *= 0x1p112f; /* exact, subnormals included */
    memcpy(&bits, &value, 4);
    bits |= (h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;
    bits |= sign;
    memcpy(&value, &bits, 4);
    return value;
}

INLINE float from_bfloat(uint16_t b) {
    uint32_t bits = (uint32_t)b << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Widen n values; to_float is for the types that FITS_FLOAT. */
#define WIDEN(TYPE, EXPRESSION)                                                     \
    for (int i = 0; i < n; i++) {                                                   \
        TYPE raw;                                                                   \
        memcpy(&raw, from + (size_t)i * sizeof raw, sizeof raw);                    \
        to[i] = (EXPRESSION);                                                       \
    }                                                                               \
    break
#define WIDENER(NAME, TO)                                                           \
    INLINE void NAME(TO *restrict to, const char *restrict from, int type, int n) { \
        switch (type) {                                                             \
        case F64: WIDEN(double, (TO)raw);                                           \
        case F32: WIDEN(float, raw);                                                \
        case F16: WIDEN(uint16_t, from_half(raw));                                  \
        case BF16: WIDEN(uint16_t, from_bfloat(raw));                               \
        case I8: WIDEN(int8_t, raw);                                                \
        case I16: WIDEN(int16_t, raw);                                              \
        case I32: WIDEN(int32_t, (TO)raw);                                          \
        case U8: WIDEN(uint8_t, raw);                                               \
        case U16: WIDEN(uint16_t, raw);                                             \
        case U32: WIDEN(uint32_t, (TO)raw);                                         \
        }                                                                           \
    }
WIDENER(to_double, double)
WIDENER(to_float, float)

/* Largest distance in units in the last place of two runs of one floating type. Bits of numbers of one sign are ordered as the
   numbers are; distances across zero add up, and never exceed the unsigned type. */
#define ULPS(UNSIGNED, SIGN)                                                        \
    {                                                                               \
        UNSIGNED most = 0;                                                          \
        for (int i = 0; i < n; i++) {                                               \
            UNSIGNED a, b;                                                          \
            memcpy(&a, golden + (size_t)i * sizeof a, sizeof a);                    \
            memcpy(&b, candidate + (size_t)i * sizeof b, sizeof b);                 \
            UNSIGNED apart = (UNSIGNED)((a & (SIGN - 1)) + (b & (SIGN - 1)));       \
            UNSIGNED beside = a > b ? (UNSIGNED)(a - b) : (UNSIGNED)(b - a);        \
            UNSIGNED distance = ((a ^ b) & SIGN) ? apart : beside;                  \
            most = distance > most ? distance : most;                               \
        }                                                                           \
        return most;                                                                \
    }

INLINE uint64_t ulps(const char *restrict golden, const char *restrict candidate, int type, int n) {
    switch (type) {
    case F64: ULPS(uint64_t, 0x8000000000000000u)
    case F32: ULPS(uint32_t, 0x80000000u)
    default: ULPS(uint16_t, 0x8000u)
    }
}

/* Sums in lanes. */
typedef struct {
    double golden[LANES], candidate[LANES], diff[LANES], cross[LANES], absolute[LANES], signed_[LANES];
} Sums;

/* What is to be done with each pair of a strip, in lane l: a, b, |a|, d = b - a and |d|. */
#define PAIRS(...)                                                                  \
    for (int i = 0; i < n; i += LANES) {                                            \
        double as[LANES], bs[LANES];                                                \
        to_double(as, golden + (size_t)i * WIDTH[type], type, LANES);               \
        to_double(bs, candidate + (size_t)i * WIDTH[type], type, LANES);            \
        EACH_LANE {                                                                 \
            double a = as[l], b = bs[l], aa = fabs(a), d = b - a, ad = fabs(d);     \
            __VA_ARGS__                                                             \
        }                                                                           \
    }

/* Add one strip of float or double values, padded with zeros to a multiple of LANES; the largest magnitudes only where they matter. */
INLINE void strip(const char *golden, const char *candidate, int type, int largest, int n, int64_t start, const Request *q, Result *r,
                  Sums *sums) {
    Sums s = *sums;
    double most[LANES] = {0}, largest_golden[LANES] = {0}, largest_candidate[LANES] = {0}, max_rel = r->max_rel;
    int64_t over_1e3[LANES] = {0}, over_5e3[LANES] = {0}, better[LANES] = {0};
    PAIRS(
        s.golden[l] += a * a;
        s.candidate[l] += b * b;
        s.diff[l] += d * d;
        s.cross[l] += d * (a + b);
        s.absolute[l] += ad;
        s.signed_[l] += d;
        most[l] = larger(ad, most[l]);
        over_1e3[l] += ad > 1e-3 * aa;
        over_5e3[l] += ad > 5e-3 * aa;
        better[l] |= may_exceed(ad, max_rel, aa, type);
        if (largest) {
            largest_golden[l] = larger(aa, largest_golden[l]);
            largest_candidate[l] = larger(fabs(b), largest_candidate[l]);
        }
    )
    *sums = s;
    r->over_1e3 += count(over_1e3);
    r->over_5e3 += count(over_5e3);
    r->largest_golden = larger(maximum(largest_golden), r->largest_golden);
    r->largest_candidate = larger(maximum(largest_candidate), r->largest_candidate);
    double strip_most = maximum(most);
    if (strip_most > r->max_abs) {
        int64_t at = INT64_MAX;
        PAIRS((void)aa; if (ad == strip_most && i + l < at) at = i + l;)
        r->max_abs = strip_most;
        r->index = start + at;
        to_double(&r->golden_at_max, golden + (size_t)at * WIDTH[type], type, 1);
        to_double(&r->candidate_at_max, candidate + (size_t)at * WIDTH[type], type, 1);
    }
    if (count(better)) {
        double share[LANES] = {0};
        PAIRS(share[l] = larger(ad / aa, share[l]);) /* 0/0 is NaN, which is not greater */
        r->max_rel = larger(maximum(share), max_rel);
    }
    if (q->rtol >= 0 && strip_most > 0) {
        double atol = q->atol, rtol = q->rtol, used = r->used, needed[LANES] = {0}, share[LANES] = {0};
        int64_t over[LANES] = {0};
        memset(better, 0, sizeof better);
        PAIRS(
            double relative = rtol * aa, allowed = atol + relative;
            over[l] += ad > allowed;
            needed[l] = larger(ad - relative, needed[l]);
            better[l] |= may_exceed(ad, used, allowed, type);
        )
        r->over_tolerance += count(over);
        r->needed = larger(maximum(needed), r->needed);
        if (count(better)) PAIRS(share[l] = larger(ad / (atol + rtol * aa), share[l]);)
        r->used = larger(maximum(share), used);
    }
    if (largest && q->saturation > 0 && r->largest_golden > q->saturation)
        PAIRS((void)ad; r->saturated += aa > q->saturation && fabs(b) == q->saturation;)
}

/* Set aside what is not finite on both sides: counted, and zero from here on. */
INLINE void set_aside(char *golden, char *candidate, int n, int64_t start, const Request *q, Result *r) {
    double x[STRIP], y[STRIP];
    size_t gw = WIDTH[q->golden], cw = WIDTH[q->candidate];
    to_double(x, golden, q->golden, n);
    to_double(y, candidate, q->candidate, n);
    for (int i = 0; i < n; i++) {
        if (isfinite(x[i]) && isfinite(y[i])) continue;
        r->golden_nan += isnan(x[i]) != 0;
        r->candidate_nan += isnan(y[i]) != 0;
        r->golden_inf += isinf(x[i]) != 0;
        r->candidate_inf += isinf(y[i]) != 0;
        int differs = !((isnan(x[i]) && isnan(y[i])) || x[i] == y[i]);
        if (differs && r->first_mismatch < 0) r->first_mismatch = start + i;
        r->mismatch += differs;
        r->saturated += q->saturation > 0 && fabs(x[i]) > q->saturation && fabs(y[i]) == q->saturation;
        r->compared -= 1;
        memset(golden + (size_t)i * gw, 0, gw);
        memset(candidate + (size_t)i * cw, 0, cw);
    }
}

/* Copy n values and zeros up to a multiple of LANES. */
INLINE const char *padded(char *to, const char *from, int n, size_t width) {
    memcpy(to, from, (size_t)n * width);
    memset(to + (size_t)n * width, 0, (size_t)(-n & (LANES - 1)) * width);
    return to;
}

/* How a chunk's candidate lies to its golden: candidate = (1 + *excess) * golden + what is perpendicular to golden, of which *apart is
   the sum of squares. Both follow from the sums, unless d lies so nearly along golden that little is left of their difference: then
   what d differs by from a multiple of golden is summed itself, which keeps all digits of types that fit float. */
INLINE void split(const char *golden, const char *candidate, int gt, int ct, int n, int careful, const double *out, double *excess,
                  double *apart) {
    double gg = out[0], cc = out[1], dd = out[2], along = (out[3] - dd) / 2, length = fabs(out[3]) / (sqrt(gg) + sqrt(cc));
    *excess = gg > 0 ? along / gg : 0;
    *apart = gg > 0 ? dd - along * *excess : dd;
    if (!(gg > 0) || (dd - length * length > 1e-3 * dd && dd < 1e8 * gg)) return;
    for (int turn = 0; turn < 3; turn++) {
        double x[STRIP], y[STRIP], squares[LANES] = {0}, products[LANES] = {0};
        double times = *excess, split_off = times * (0x1p29 + 1), high = split_off - (split_off - times), low = times - high;
        for (int done = 0; done < n; done += STRIP) {
            int m = n - done < STRIP ? n - done : STRIP;
            to_double(x, golden + (size_t)done * WIDTH[gt], gt, m);
            to_double(y, candidate + (size_t)done * WIDTH[ct], ct, m);
            for (int i = careful ? 0 : m; i < m; i++)
                if (!isfinite(x[i]) || !isfinite(y[i])) x[i] = y[i] = 0;
            for (int i = m; i & (LANES - 1); i++) x[i] = y[i] = 0;
            for (int i = 0; i < m; i += LANES)
                EACH_LANE {
                    double a = x[i + l], rest = ((y[i + l] - a) - high * a) - low * a; /* high * a is exact: 24 bits by 24 */
                    squares[l] += rest * rest;
                    products[l] += rest * a;
                }
        }
        double left = sum(squares), more = sum(products) / gg, taken = more * sum(products);
        *excess = times + more;
        *apart = left - taken;
        if (taken <= 1e-3 * left) return; /* else the multiple was not near enough */
    }
}

CLONES static void chunk(const char *golden, const char *candidate, int n, int64_t start, const Request *q, Result *r, double *out) {
    union { char raw[STRIP * 8]; float single[STRIP]; double wide[STRIP]; } g, c, x, y;
    int gt = q->golden, ct = q->candidate, same = gt == ct && gt <= BF16;
    size_t gw = WIDTH[gt], cw = WIDTH[ct];
    const Result before = *r;
    int careful = 0;
    for (; careful < 2; careful++) {
        Sums s;
        memset(&s, 0, sizeof s);
        *r = before;
        r->compared += n;
        for (int done = 0; done < n; done += STRIP) {
            int m = n - done < STRIP ? n - done : STRIP, whole = (m + LANES - 1) & -LANES;
            const char *a = golden + (size_t)done * gw, *b = candidate + (size_t)done * cw;
            if (careful || m < whole) {
                a = padded(g.raw, a, m, gw);
                b = padded(c.raw, b, m, cw);
            }
            if (careful) set_aside(g.raw, c.raw, m, start + done, q, r);
            if (same) {
                uint64_t most = ulps(a, b, gt, m);
                r->ulps = most > r->ulps ? most : r->ulps;
            }
            if (FITS_FLOAT[gt] && FITS_FLOAT[ct]) {
                if (gt != F32) to_float(x.single, a, gt, whole), a = x.raw;
                if (ct != F32) to_float(y.single, b, ct, whole), b = y.raw;
                if (same) strip(a, b, F32, 0, whole, start + done, q, r, &s);
                else strip(a, b, F32, 1, whole, start + done, q, r, &s);
            } else {
                if (gt != F64) to_double(x.wide, a, gt, whole), a = x.raw;
                if (ct != F64) to_double(y.wide, b, ct, whole), b = y.raw;
                strip(a, b, F64, 1, whole, start + done, q, r, &s);
            }
        }
        out[0] = sum(s.golden); out[1] = sum(s.candidate); out[2] = sum(s.diff);
        out[3] = sum(s.cross); out[4] = sum(s.absolute); out[5] = sum(s.signed_);
        if (isfinite(out[0] + out[1] + out[2] + out[4])) break;
    }
    out[6] = out[7] = NAN;
    if (FITS_FLOAT[gt] && FITS_FLOAT[ct]) split(golden, candidate, gt, ct, n, careful, out, out + 6, out + 7);
}

/* Two vectors that are to be compared in direction: powers of two that bring each near length 1, and the lengths then. */
typedef struct {
    double golden_power, candidate_power, golden_length, candidate_length;
} Lengths;

/* value * factor: the rounded product, and in *error exactly what rounding took off it (T. J. Dekker, Numerische Mathematik 18, 1971). */
INLINE double product(double value, double factor, double *error) {
    const double splitter = 0x1p27 + 1;
    double rounded = value * factor, high = value * splitter, factor_high = factor * splitter;
    high -= high - value;
    factor_high -= factor_high - factor;
    double low = value - high, factor_low = factor - factor_high;
    *error = low * factor_low - (((rounded - high * factor_high) - low * factor_high) - high * factor_low);
    return rounded;
}

/* The sum of squares of candidate * |golden| - golden * |candidate|, over what is finite on both sides. */
CLONES static double apart_chunk(const char *golden, const char *candidate, int gt, int ct, int n, const Lengths *k) {
    double x[STRIP], y[STRIP], squares[LANES] = {0};
    for (int done = 0; done < n; done += STRIP) {
        int m = n - done < STRIP ? n - done : STRIP;
        to_double(x, golden + (size_t)done * WIDTH[gt], gt, m);
        to_double(y, candidate + (size_t)done * WIDTH[ct], ct, m);
        for (int i = m; i & (LANES - 1); i++) x[i] = y[i] = 0;
        for (int i = 0; i < m; i += LANES)
            EACH_LANE {
                double a = x[i + l], b = y[i + l], left_error, right_error;
                int finite = a * 0 + b * 0 == 0;
                a = finite ? a : 0;
                b = finite ? b : 0;
                double left = product(b * k->candidate_power, k->golden_length, &left_error);
                double right = product(a * k->golden_power, k->candidate_length, &right_error);
                double apart = (left - right) + (left_error - right_error);
                squares[l] += apart * apart;
            }
    }
    return sum(squares);
}

/* Extrema, NaN and Inf of what was seen so far. */
typedef struct {
    double min, max;
    int64_t nan, inf;
} Extent;

CLONES static void summarize_chunk(const char *from, int type, int n, Extent *e, double *out) {
    double x[STRIP];
    for (int careful = 0; careful < 2; careful++) {
        double sums[LANES] = {0}, squares[LANES] = {0}, lowest[LANES] = {0}, highest[LANES] = {0};
        for (int l = 0; l < LANES; l++) lowest[l] = highest[l] = -INFINITY; /* the lowest, negated */
        for (int done = 0; done < n; done += STRIP) {
            int m = n - done < STRIP ? n - done : STRIP, whole = (m + LANES - 1) & -LANES;
            to_double(x, from + (size_t)done * WIDTH[type], type, m);
            for (int i = careful ? 0 : m; i < whole; i++) {
                if (i < m && isfinite(x[i])) continue;
                e->nan += i < m && isnan(x[i]);
                e->inf += i < m && isinf(x[i]);
                x[i] = NAN; /* which is not greater than anything */
            }
            for (int i = 0; i < whole; i += LANES)
                EACH_LANE {
                    lowest[l] = larger(-x[i + l], lowest[l]);
                    highest[l] = larger(x[i + l], highest[l]);
                }
            for (int i = careful ? 0 : m; i < whole; i++) x[i] = isnan(x[i]) ? 0 : x[i];
            for (int i = 0; i < whole; i += LANES)
                EACH_LANE {
                    sums[l] += x[i + l];
                    squares[l] += x[i + l] * x[i + l];
                }
        }
        out[0] = sum(sums);
        out[1] = sum(squares);
        if (!careful && !isfinite(out[1])) continue;
        e->min = -larger(maximum(lowest), -e->min);
        e->max = larger(maximum(highest), e->max);
        break;
    }
}

/* The smallest and the largest of n values, and the smallest magnitude, as if there were no NaN; how many are NaN, Inf, 0, and below
   their type's smallest normal number. */
typedef struct {
    double low, high, smallest;
    int64_t nan, inf, zero, subnormal;
} Extrema;

static const double SMALLEST_NORMAL[TYPES] = {0x1p-1022, 0x1p-126, 0x1p-14, 0x1p-126};

CLONES static void find_extrema(const char *from, int type, int64_t n, Extrema *e) {
    double x[STRIP], lowest[LANES], highest[LANES], nearest[LANES]; /* the lowest and the nearest to 0, negated */
    int64_t nan[LANES] = {0}, inf[LANES] = {0}, zero[LANES] = {0}, tiny[LANES] = {0};
    double normal = SMALLEST_NORMAL[type];
    for (int l = 0; l < LANES; l++) lowest[l] = highest[l] = nearest[l] = -INFINITY;
    for (int64_t done = 0; done < n; done += STRIP) {
        int m = n - done < STRIP ? (int)(n - done) : STRIP;
        to_double(x, from + (size_t)done * WIDTH[type], type, m);
        for (int i = 0; i < m; i += LANES) {
            int lanes = m - i < LANES ? m - i : LANES;
            _Pragma("GCC unroll 1") for (int l = 0; l < lanes; l++) {
                double v = x[i + l], size = fabs(v);
                lowest[l] = larger(-v, lowest[l]);
                highest[l] = larger(v, highest[l]);
                nearest[l] = larger(-size, nearest[l]);
                nan[l] += v != v;
                inf[l] += size == INFINITY;
                zero[l] += size == 0;
                tiny[l] += size < normal;
            }
        }
    }
    *e = (Extrema){-maximum(lowest), maximum(highest), -maximum(nearest), count(nan), count(inf), count(zero), count(tiny) - count(zero)};
}

/* The smallest and the largest of n values, negated the first, and the smallest magnitude, negated; whether there is a NaN, of which these
   know nothing. Floats in twice as many lanes. */
#define RANGE(REAL, LANE, WIDENED)                                                  \
    {                                                                               \
        REAL x[STRIP], low[LANE], high[LANE], near[LANE];                           \
        int32_t nan[LANE] = {0};                                                    \
        for (int l = 0; l < LANE; l++) low[l] = high[l] = near[l] = (REAL)-INFINITY; \
        for (int64_t done = 0; done < n; done += STRIP) {                           \
            int m = n - done < STRIP ? (int)(n - done) : STRIP;                     \
            WIDENED(x, from + (size_t)done * WIDTH[type], type, m);                 \
            for (int i = m; i & (LANE - 1); i++) x[i] = x[0];                       \
            for (int i = 0; i < m; i += LANE)                                       \
                _Pragma("GCC unroll 1") for (int l = 0; l < LANE; l++) {            \
                    REAL v = x[i + l], away = v < 0 ? v : -v;                       \
                    low[l] = -v > low[l] ? -v : low[l];                             \
                    high[l] = v > high[l] ? v : high[l];                            \
                    near[l] = away > near[l] ? away : near[l];                      \
                    nan[l] |= v != v;                                               \
                }                                                                   \
        }                                                                           \
        for (int l = 0; l < LANE; l++) {                                            \
            out[0] = larger(low[l], out[0]);                                        \
            out[1] = larger(high[l], out[1]);                                       \
            out[2] = larger(near[l], out[2]);                                       \
            any |= nan[l];                                                          \
        }                                                                           \
    }

CLONES static int find_range(const char *from, int type, int64_t n, double *out) {
    int any = 0;
    out[0] = out[1] = out[2] = -INFINITY;
    if (type == F64) RANGE(double, 8, to_double)
    else RANGE(float, 16, to_float)
    return any;
}

/* One block of a sketch, see numbers/sketch.py: values in rows, summed over the rows with signs; what is not finite counts as 0 if careful. */
CLONES static void sketch_groups(const char *from, int type, int64_t n, int groups, const int8_t *signs, double scale, int careful,
                                 double *x, double *sums) {
    for (int g = 0; g < groups; g++) sums[g] = 0;
    for (int64_t done = 0; done < n; done += groups, signs += groups) {
        int m = n - done < groups ? (int)(n - done) : groups;
        to_double(x, from + (size_t)done * WIDTH[type], type, m);
        for (int g = careful ? 0 : m; g < m; g++) x[g] = isfinite(x[g]) ? x[g] : 0;
        for (int g = 0; g < m; g++) sums[g] += x[g] * scale * signs[g];
    }
}

/* An array's bytes, and its elements: of which type, how many. */
typedef struct {
    Py_buffer bytes;
    int type;
    Py_ssize_t count;
} Operand;

static int take(PyObject *array, PyObject *type, Operand *o) {
    long number = PyLong_AsLong(type);
    if (number == -1 && PyErr_Occurred()) return 0;
    if (number < 0 || number >= TYPES) return PyErr_Format(PyExc_ValueError, "there is no element type %ld", number), 0;
    if (PyObject_GetBuffer(array, &o->bytes, PyBUF_SIMPLE)) return 0;
    o->type = (int)number;
    o->count = o->bytes.len / (Py_ssize_t)WIDTH[number];
    if (o->bytes.len % (Py_ssize_t)WIDTH[number] == 0) return 1;
    PyBuffer_Release(&o->bytes);
    PyErr_SetString(PyExc_ValueError, "an array must hold whole elements of the given type");
    return 0;
}

/* Elements per chunk; 0 for what is none. */
static int take_size(PyObject *number) {
    long size = PyLong_AsLong(number);
    if (size > 0 && size <= INT32_MAX) return (int)size;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a chunk must hold at least one element, and fewer than 2**31");
    return 0;
}

/* Sums by chunk, `each` of them a chunk, as a list of lists: one for every sum. */
static PyObject *lists(const double *sums, Py_ssize_t chunks, int each) {
    PyObject *all = PyList_New(each);
    for (int i = 0; all && i < each; i++) {
        PyObject *list = PyList_New(chunks);
        for (Py_ssize_t k = 0; list && k < chunks; k++) {
            PyObject *value = PyFloat_FromDouble(sums[k * each + i]);
            if (value) PyList_SET_ITEM(list, k, value);
            else Py_CLEAR(list);
        }
        if (list) PyList_SET_ITEM(all, i, list);
        else Py_CLEAR(all);
    }
    return all;
}

enum { SMALL_BLOCK = 4096 };

static PyObject *summarize_block(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    Operand values;
    Extent e = {INFINITY, -INFINITY, 0, 0};
    PyObject *found = NULL;
    (void)self;
    if (given != 3) return PyErr_SetString(PyExc_TypeError, "summarize_block takes 3 arguments"), NULL;
    int size = take_size(args[2]);
    if (!size || !take(args[0], args[1], &values)) return NULL;
    Py_ssize_t n = values.count, chunks = n / size + (n % size != 0);
    double *sums = PyMem_New(double, chunks * 2);
    if (sums) {
        /* Of a small block, to get the interpreter back would take longer than all else. */
        PyThreadState *state = n > SMALL_BLOCK ? PyEval_SaveThread() : NULL;
        for (Py_ssize_t k = 0; k < chunks; k++)
            summarize_chunk((const char *)values.bytes.buf + (size_t)(k * size) * WIDTH[values.type], values.type,
                            (int)(n - k * size < size ? n - k * size : size), &e, sums + k * 2);
        if (state) PyEval_RestoreThread(state);
        PyObject *listed = lists(sums, chunks, 2);
        if (listed) found = Py_BuildValue("ddLLN", e.min, e.max, (long long)e.nan, (long long)e.inf, listed);
        PyMem_Free(sums);
    } else PyErr_NoMemory();
    PyBuffer_Release(&values.bytes);
    return found;
}

/* Of memory that the caller knows to hold so many elements: a small tensor of torch's, which has no buffer to take. */
static PyObject *extrema_at(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    (void)self;
    if (given != 3) return PyErr_SetString(PyExc_TypeError, "extrema_at takes 3 arguments"), NULL;
    void *from = PyLong_AsVoidPtr(args[0]);
    long type = PyLong_AsLong(args[1]);
    long long n = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred()) return NULL;
    if (!from || type < 0 || type > BF16 || n < 1) return PyErr_SetString(PyExc_ValueError, "there is nothing to look at"), NULL;
    Extrema e;
    find_extrema(from, (int)type, n, &e);
    return Py_BuildValue("dddLLLL", e.low, e.high, e.smallest, (long long)e.nan, (long long)e.inf, (long long)e.zero, (long long)e.subnormal);
}

enum { LONG_RANGE = 1 << 16 };

/* None if there is a NaN. */
static PyObject *range_at(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    (void)self;
    if (given != 3) return PyErr_SetString(PyExc_TypeError, "range_at takes 3 arguments"), NULL;
    void *from = PyLong_AsVoidPtr(args[0]);
    long type = PyLong_AsLong(args[1]);
    long long n = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred()) return NULL;
    if (!from || type < 0 || type > BF16 || n < 1) return PyErr_SetString(PyExc_ValueError, "there is nothing to look at"), NULL;
    double out[3];
    PyThreadState *state = n > LONG_RANGE ? PyEval_SaveThread() : NULL;
    int nan = find_range(from, (int)type, n, out);
    if (state) PyEval_RestoreThread(state);
    if (nan) Py_RETURN_NONE;
    return Py_BuildValue("ddd", -out[0], out[1], fabs(out[2]));
}

/* Memory that may be written, of at least so many bytes. */
static int take_writable(PyObject *object, Py_ssize_t bytes, Py_buffer *memory) {
    if (PyObject_GetBuffer(object, memory, PyBUF_WRITABLE)) return 0;
    if (memory->len >= bytes) return 1;
    PyBuffer_Release(memory);
    PyErr_SetString(PyExc_ValueError, "there is no room for what is found");
    return 0;
}

/* An index, or None for -1. */
static PyObject *place(int64_t index) {
    if (index >= 0) return PyLong_FromLongLong(index);
    Py_RETURN_NONE;
}

/* What was found, in the order of kernel.py's Measured. */
static PyObject *found_in(const Result *r) {
    return Py_BuildValue("(LdNdddKLddLLLLLLLNLdd)", (long long)r->compared, r->max_abs, place(r->index), r->golden_at_max, r->candidate_at_max,
                         r->max_rel, (unsigned long long)r->ulps, (long long)r->over_tolerance, r->used, r->needed, (long long)r->over_1e3,
                         (long long)r->over_5e3, (long long)r->golden_nan, (long long)r->candidate_nan, (long long)r->golden_inf,
                         (long long)r->candidate_inf, (long long)r->mismatch, place(r->first_mismatch), (long long)r->saturated,
                         r->largest_golden, r->largest_candidate);
}

/* What measure_chunks and its callers take: two operands of equally many elements, chunks of `size`, tolerances. */
typedef struct {
    Operand golden, candidate;
    Request request;
    int size;
} Work;

static int take_pair(PyObject *const *args, Work *w) {
    Request q = {PyFloat_AsDouble(args[5]), PyFloat_AsDouble(args[6]), PyFloat_AsDouble(args[7]), 0, 0};
    w->size = PyErr_Occurred() ? 0 : take_size(args[4]);
    if (!w->size || !take(args[0], args[2], &w->golden)) return 0;
    if (!take(args[1], args[3], &w->candidate)) return PyBuffer_Release(&w->golden.bytes), 0;
    q.golden = w->golden.type;
    q.candidate = w->candidate.type;
    w->request = q;
    if (w->candidate.count == w->golden.count) return 1;
    PyErr_SetString(PyExc_ValueError, "golden and candidate must hold equally many elements");
    PyBuffer_Release(&w->golden.bytes);
    PyBuffer_Release(&w->candidate.bytes);
    return 0;
}

/* Add a block to what was found; `sums` has room for its chunks. */
static void measure_chunks(const Work *w, Result *r, char *sums) {
    Py_ssize_t n = w->golden.count, size = w->size;
    for (Py_ssize_t k = 0; k * size < n; k++) {
        double out[SUMS];
        chunk((const char *)w->golden.bytes.buf + (size_t)(k * size) * WIDTH[w->golden.type],
              (const char *)w->candidate.bytes.buf + (size_t)(k * size) * WIDTH[w->candidate.type],
              (int)(n - k * size < size ? n - k * size : size), r->seen + k * size, &w->request, r, out);
        memcpy(sums + (size_t)k * sizeof out, out, sizeof out);
    }
    r->seen += n;
}

static const Result NOTHING = {.index = -1, .first_mismatch = -1};

static PyObject *new_result(PyObject *self, PyObject *nothing) {
    (void)self, (void)nothing;
    return PyByteArray_FromStringAndSize((const char *)&NOTHING, sizeof NOTHING);
}

static PyObject *read_result(PyObject *self, PyObject *result) {
    Py_buffer bytes;
    Result r;
    (void)self;
    if (!take_writable(result, sizeof r, &bytes)) return NULL;
    memcpy(&r, bytes.buf, sizeof r);
    PyBuffer_Release(&bytes);
    return found_in(&r);
}

static PyObject *measure_block(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    Work w;
    Py_buffer result, sums;
    Result r;
    (void)self;
    if (given != 10) return PyErr_SetString(PyExc_TypeError, "measure_block takes 10 arguments"), NULL;
    if (!take_pair(args, &w)) return NULL;
    Py_ssize_t chunks = w.golden.count / w.size + (w.golden.count % w.size != 0);
    if (take_writable(args[8], sizeof r, &result)) {
        memcpy(&r, result.buf, sizeof r);
        if (r.seen % w.size) PyErr_SetString(PyExc_ValueError, "only the last block may end inside a chunk");
        else if (take_writable(args[9], (Py_ssize_t)(r.seen / w.size + chunks) * SUMS * (Py_ssize_t)sizeof(double), &sums)) {
            Py_BEGIN_ALLOW_THREADS
            measure_chunks(&w, &r, (char *)sums.buf + (size_t)(r.seen / w.size) * SUMS * sizeof(double));
            memcpy(result.buf, &r, sizeof r);
            Py_END_ALLOW_THREADS
            PyBuffer_Release(&sums);
        }
        PyBuffer_Release(&result);
    }
    PyBuffer_Release(&w.golden.bytes);
    PyBuffer_Release(&w.candidate.bytes);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyObject *measure_whole(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    Work w;
    Result r = NOTHING;
    PyObject *found = NULL;
    (void)self;
    if (given != 8) return PyErr_SetString(PyExc_TypeError, "measure_whole takes 8 arguments"), NULL;
    if (!take_pair(args, &w)) return NULL;
    Py_ssize_t chunks = w.golden.count / w.size + (w.golden.count % w.size != 0);
    double *sums = PyMem_New(double, chunks * SUMS);
    if (sums) {
        Py_BEGIN_ALLOW_THREADS
        measure_chunks(&w, &r, (char *)sums);
        Py_END_ALLOW_THREADS
        PyObject *listed = lists(sums, chunks, SUMS);
        if (listed) found = Py_BuildValue("NN", found_in(&r), listed);
        PyMem_Free(sums);
    } else PyErr_NoMemory();
    PyBuffer_Release(&w.golden.bytes);
    PyBuffer_Release(&w.candidate.bytes);
    return found;
}

/* The bytes of a table, of which there must be so many. */
static int take_table(PyObject *object, Py_ssize_t bytes, Py_buffer *memory) {
    if (PyObject_GetBuffer(object, memory, PyBUF_SIMPLE)) return 0;
    if (memory->len >= bytes) return 1;
    PyBuffer_Release(memory);
    PyErr_SetString(PyExc_ValueError, "a table is too short");
    return 0;
}

/* Whether a tensor of so many elements of a type lies in a buffer. */
static int lies_in(const Py_buffer *buffer, int64_t offset, int64_t elements, int64_t type) {
    return type >= 0 && type < TYPES && elements > 0 && offset >= 0 && offset <= buffer->len &&
           elements <= (buffer->len - offset) / (int64_t)WIDTH[type];
}

/* Many pairs of tensors of at most one chunk: row by row of the tables. */
static PyObject *measure_pairs(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    Py_buffer taken[6];
    int count = 0;
    (void)self;
    if (given != 7) return PyErr_SetString(PyExc_TypeError, "measure_pairs takes 7 arguments"), NULL;
    int size = take_size(args[6]);
    if (!size) return NULL;
    while (count < 3 && take_table(args[count], 0, &taken[count])) count++;
    Py_ssize_t pairs = count == 3 ? taken[2].len / (5 * 8) : 0;
    if (count == 3 && take_table(args[3], pairs * 3 * (Py_ssize_t)sizeof(double), &taken[3])) count = 4;
    if (count == 4 && take_writable(args[4], pairs * (Py_ssize_t)sizeof(Result), &taken[4])) count = 5;
    if (count == 5 && take_writable(args[5], pairs * SUMS * (Py_ssize_t)sizeof(double), &taken[5])) count = 6;
    const int64_t *places = count == 6 ? taken[2].buf : NULL;
    for (Py_ssize_t k = 0; count == 6 && k < pairs; k++) {
        const int64_t *p = places + k * 5;
        if (p[2] <= size && lies_in(&taken[0], p[0], p[2], p[3]) && lies_in(&taken[1], p[1], p[2], p[4])) continue;
        PyErr_SetString(PyExc_ValueError, "a pair lies outside of its buffers, or is larger than a chunk");
        break;
    }
    if (count == 6 && !PyErr_Occurred()) {
        const double *limits = taken[3].buf;
        Result *results = taken[4].buf;
        double *sums = taken[5].buf;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t k = 0; k < pairs; k++) {
            const int64_t *p = places + k * 5;
            Request q = {limits[k * 3], limits[k * 3 + 1], limits[k * 3 + 2], (int)p[3], (int)p[4]};
            results[k] = NOTHING;
            chunk((const char *)taken[0].buf + p[0], (const char *)taken[1].buf + p[1], (int)p[2], 0, &q, &results[k], sums + k * SUMS);
        }
        Py_END_ALLOW_THREADS
    }
    for (int i = 0; i < count; i++) PyBuffer_Release(&taken[i]);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyObject *apart_block(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    Operand golden, candidate;
    PyObject *listed = NULL;
    double *sums = NULL;
    (void)self;
    if (given != 9) return PyErr_SetString(PyExc_TypeError, "apart_block takes 9 arguments"), NULL;
    Lengths lengths = {PyFloat_AsDouble(args[5]), PyFloat_AsDouble(args[6]), PyFloat_AsDouble(args[7]), PyFloat_AsDouble(args[8])};
    int size = PyErr_Occurred() ? 0 : take_size(args[4]);
    if (!size || !take(args[0], args[2], &golden)) return NULL;
    if (!take(args[1], args[3], &candidate)) return PyBuffer_Release(&golden.bytes), NULL;
    Py_ssize_t n = golden.count, chunks = n / size + (n % size != 0);
    if (candidate.count != n) PyErr_SetString(PyExc_ValueError, "golden and candidate must hold equally many elements");
    else if (!(sums = PyMem_New(double, chunks))) PyErr_NoMemory();
    else {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t k = 0; k < chunks; k++)
            sums[k] = apart_chunk((const char *)golden.bytes.buf + (size_t)(k * size) * WIDTH[golden.type],
                                  (const char *)candidate.bytes.buf + (size_t)(k * size) * WIDTH[candidate.type], golden.type,
                                  candidate.type, (int)(n - k * size < size ? n - k * size : size), &lengths);
        Py_END_ALLOW_THREADS
        listed = lists(sums, chunks, 1);
        PyMem_Free(sums);
    }
    PyBuffer_Release(&golden.bytes);
    PyBuffer_Release(&candidate.bytes);
    return listed;
}

static PyObject *sketch_blocks(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    Operand values;
    Py_buffer tables[6];
    int taken = 0;
    double *room = NULL;
    (void)self;
    if (given != 11) return PyErr_SetString(PyExc_TypeError, "sketch_blocks takes 11 arguments"), NULL;
    double scale = PyFloat_AsDouble(args[2]);
    int rows = PyErr_Occurred() ? 0 : take_size(args[3]), groups = rows ? take_size(args[4]) : 0;
    if (!groups || !take(args[0], args[1], &values)) return NULL;
    int64_t block = (int64_t)rows * groups, blocks = values.count / block + (values.count % block != 0);
    Py_ssize_t size = PyObject_Length(args[10]);
    if (size <= 0 && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a sketch has at least one number");
    Py_ssize_t bytes[6] = {(Py_ssize_t)block, (Py_ssize_t)(blocks * groups * 4), (Py_ssize_t)(blocks * groups), (Py_ssize_t)blocks * 4,
                           (Py_ssize_t)blocks, 0};
    while (taken < 5 && size > 0 && take_table(args[5 + taken], bytes[taken], &tables[taken])) taken++;
    if (taken == 5 && take_writable(args[10], size * (Py_ssize_t)sizeof(double), &tables[5])) taken = 6;
    if (taken == 6 && !(room = PyMem_New(double, 2 * groups + size))) PyErr_NoMemory();
    int outside = 0;
    if (room) {
        const int8_t *signs = tables[0].buf, *group_signs = tables[2].buf, *block_signs = tables[4].buf;
        const int32_t *buckets = tables[1].buf, *rotations = tables[3].buf;
        double *x = room, *sums = room + groups, *own = room + 2 * groups, *sketch = tables[5].buf;
        Py_BEGIN_ALLOW_THREADS
        for (int64_t b = 0; b < blocks && !outside; b++) {
            const char *from = (const char *)values.bytes.buf + (size_t)(b * block) * WIDTH[values.type];
            int64_t n = values.count - b * block < block ? values.count - b * block : block;
            for (int careful = 0; careful < 2; careful++) {
                double check = 0;
                sketch_groups(from, values.type, n, groups, signs, scale, careful, x, sums);
                for (int g = 0; g < groups; g++) check += sums[g] * 0;
                if (check == 0) break;
            }
            for (Py_ssize_t i = 0; i < size; i++) own[i] = 0;
            for (int g = 0; g < groups; g++) {
                int64_t at = ((int64_t)buckets[b * groups + g] + rotations[b]) % size;
                if (at < 0) { outside = 1; break; }
                own[at] += sums[g] * group_signs[b * groups + g] * block_signs[b];
            }
            for (Py_ssize_t i = 0; i < size; i++) sketch[i] += own[i];
        }
        Py_END_ALLOW_THREADS
        PyMem_Free(room);
        if (outside) PyErr_SetString(PyExc_ValueError, "a bucket of a sketch is negative");
    }
    for (int i = 0; i < taken; i++) PyBuffer_Release(&tables[i]);
    PyBuffer_Release(&values.bytes);
    if (!room || outside) return NULL;
    Py_RETURN_NONE;
}

/* The Mersenne Twister MT19937: the first n numbers of a seed, as PyTorch makes float32 of them, which takes it eight times as long; or
   whether each is below a limit, if that is a number. */
enum { TWISTER = 624, AHEAD = 397 };

static inline uint32_t twisted(uint32_t one, uint32_t next) {
    uint32_t both = (one & 0x80000000u) | (next & 0x7fffffffu);
    return (both >> 1) ^ ((next & 1u) ? 0x9908b0dfu : 0);
}

CLONES static void draw_uniform(uint32_t seed, float *out, Py_ssize_t n, float limit) {
    uint32_t old[TWISTER], new[TWISTER];
    new[0] = seed;
    for (uint32_t i = 1; i < TWISTER; i++) new[i] = 1812433253u * (new[i - 1] ^ (new[i - 1] >> 30)) + i;
    for (Py_ssize_t done = 0; done < n; done += TWISTER) {
        memcpy(old, new, sizeof old);
        for (int i = 0; i < TWISTER - AHEAD; i++) new[i] = old[i + AHEAD] ^ twisted(old[i], old[i + 1]);
        for (int i = TWISTER - AHEAD; i < TWISTER - 1; i++) new[i] = new[i + AHEAD - TWISTER] ^ twisted(old[i], old[i + 1]);
        new[TWISTER - 1] = new[AHEAD - 1] ^ twisted(old[TWISTER - 1], new[0]);
        int m = n - done < TWISTER ? (int)(n - done) : TWISTER;
        for (int i = 0; i < m; i++) {
            uint32_t x = new[i];
            x ^= x >> 11;
            x ^= (x << 7) & 0x9d2c5680u;
            x ^= (x << 15) & 0xefc60000u;
            x ^= x >> 18;
            out[done + i] = (float)(int32_t)(x & 0xffffffu) * 0x1p-24f;
        }
        for (int i = isnan(limit) ? m : 0; i < m; i++) out[done + i] = out[done + i] < limit ? 1.0f : 0.0f;
    }
}

static PyObject *fill_uniform(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    Py_buffer memory;
    (void)self;
    if (given != 3) return PyErr_SetString(PyExc_TypeError, "fill_uniform takes 3 arguments"), NULL;
    unsigned long seed = PyLong_AsUnsignedLongMask(args[0]);
    double limit = PyFloat_AsDouble(args[2]);
    if (PyErr_Occurred() || !take_writable(args[1], 0, &memory)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    draw_uniform((uint32_t)seed, memory.buf, memory.len / (Py_ssize_t)sizeof(float), (float)limit);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&memory);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"apart_block", (PyCFunction)(void (*)(void))apart_block, METH_FASTCALL,
     "apart_block(golden, candidate, golden_type, candidate_type, chunk, golden_power, candidate_power, golden_length, candidate_length)"
     " -> [sums], see numbers/kernel.py"},
    {"fill_uniform", (PyCFunction)(void (*)(void))fill_uniform, METH_FASTCALL, "fill_uniform(seed, float32 array, limit), see numbers/kernel.py"},
    {"extrema_at", (PyCFunction)(void (*)(void))extrema_at, METH_FASTCALL,
     "extrema_at(address, type, count) -> (low, high, smallest, nan, inf, zero, subnormal), see numbers/kernel.py"},
    {"range_at", (PyCFunction)(void (*)(void))range_at, METH_FASTCALL, "range_at(address, type, count) -> (low, high, smallest), see numbers/kernel.py"},
    {"measure_block", (PyCFunction)(void (*)(void))measure_block, METH_FASTCALL,
     "measure_block(golden, candidate, golden_type, candidate_type, chunk, atol, rtol, saturation, result, sums), see numbers/kernel.py"},
    {"measure_pairs", (PyCFunction)(void (*)(void))measure_pairs, METH_FASTCALL,
     "measure_pairs(golden, candidate, places, limits, results, sums, chunk), see numbers/kernel.py"},
    {"measure_whole", (PyCFunction)(void (*)(void))measure_whole, METH_FASTCALL,
     "measure_whole(golden, candidate, golden_type, candidate_type, chunk, atol, rtol, saturation) -> (found, [sums]), see numbers/kernel.py"},
    {"new_result", new_result, METH_NOARGS, "new_result() -> bytearray, for measure_block"},
    {"read_result", read_result, METH_O, "read_result(bytearray) -> found, see numbers/kernel.py"},
    {"sketch_blocks", (PyCFunction)(void (*)(void))sketch_blocks, METH_FASTCALL,
     "sketch_blocks(values, type, scale, rows, groups, signs, buckets, group_signs, rotations, block_signs, sketch), see numbers/sketch.py"},
    {"summarize_block", (PyCFunction)(void (*)(void))summarize_block, METH_FASTCALL,
     "summarize_block(values, type, chunk) -> (min, max, nan, inf, sums), see numbers/kernel.py"},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernel", "One pass over a block of tensors.", -1, methods, NULL, NULL, NULL, NULL};

/* Of what the functions take and give; numbers/kernel.py takes no kernel of another version. Change both together. */
#define VERSION 4

PyMODINIT_FUNC PyInit__kernel(void) {
    PyObject *made = PyModule_Create(&module);
    if (made && PyModule_AddIntConstant(made, "VERSION", VERSION)) Py_CLEAR(made);
    return made;
}
