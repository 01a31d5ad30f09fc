/* One pass over a block of a tensor, or of a pair of tensors: what statistics.py and compare/measure.py do with NumPy.

   A block is taken in chunks, as bundle/sums.py describes; each chunk's sums are written out and added
   exactly in Python, so no result depends on where blocks end. Inside a chunk, elements are widened to double in strips of
   STRIP, then summed in LANES separate sums, so that every processor adds in the same order whatever its vectors' width
   (contraction to fused multiply-add is off). A chunk whose sums are not finite is done again with NaN and Inf counted and
   set aside.

   The file is plain C with the vector extensions of GCC and Clang. On x86-64 Linux, GCC adds versions for wider vectors, chosen
   when the module is loaded. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { STRIP = 512, LANES = 8, SUMS = 6 };

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && !defined(ACCUCOMPARE_NO_CLONES)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif
#define INLINE static inline __attribute__((always_inline))

typedef double vec __attribute__((vector_size(LANES * sizeof(double)), may_alias));
typedef int64_t mask __attribute__((vector_size(LANES * sizeof(int64_t)), may_alias));

/* Element types; the numbers are bundle/kernel.py's. */
enum { F64, F32, F16, BF16, I8, I16, I32, U8, U16, U32, TYPES };
static const size_t WIDTH[TYPES] = {8, 4, 2, 2, 1, 2, 4, 1, 2, 4};

typedef struct {
    double atol, rtol;   /* rtol < 0: no tolerance was asked for */
    double saturation;   /* the candidate type's largest value; 0: it has none */
    int golden, candidate;
} Request;

typedef struct {
    double max_abs, max_rel, used, needed, largest_golden, largest_candidate;
    int64_t index, compared, over_tolerance, over_1e3, over_5e3;
    int64_t golden_nan, candidate_nan, golden_inf, candidate_inf, mismatch, saturated;
    uint64_t ulps;
} Result;

INLINE vec vabs(vec v) { return (vec)((mask)v & (mask){0x7fffffffffffffff, 0x7fffffffffffffff, 0x7fffffffffffffff, 0x7fffffffffffffff,
                                                      0x7fffffffffffffff, 0x7fffffffffffffff, 0x7fffffffffffffff, 0x7fffffffffffffff}); }
INLINE vec vmax(vec a, vec b) { mask m = a > b; return (vec)(((mask)a & m) | ((mask)b & ~m)); }
INLINE vec vmin(vec a, vec b) { return -vmax(-a, -b); }
INLINE int any(mask m) { int64_t r = 0; for (int i = 0; i < LANES; i++) r |= m[i]; return r != 0; }
INLINE double hmax(vec v) { double r = v[0]; for (int i = 1; i < LANES; i++) r = v[i] > r ? v[i] : r; return r; }
INLINE int64_t hsum(mask v) { int64_t r = 0; for (int i = 0; i < LANES; i++) r += v[i]; return r; }
/* Lanes are added in pairs. */
INLINE double vsum(vec v) { return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7])); }

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

#define WIDEN(TYPE, EXPRESSION)                                                     \
    {                                                                               \
        for (int i = 0; i < n; i++) {                                               \
            TYPE raw;                                                               \
            memcpy(&raw, from + (size_t)i * sizeof raw, sizeof raw);                \
            to[i] = (EXPRESSION);                                                   \
        }                                                                           \
    }                                                                               \
    break

INLINE double from_bfloat(uint16_t b) {
    uint32_t bits = (uint32_t)b << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

INLINE void widen(double *restrict to, const char *restrict from, int type, int n) {
    switch (type) {
    case F64: memcpy(to, from, (size_t)n * 8); break;
    case F32: WIDEN(float, raw);
    case F16: WIDEN(uint16_t, from_half(raw));
    case BF16: WIDEN(uint16_t, from_bfloat(raw));
    case I8: WIDEN(int8_t, raw);
    case I16: WIDEN(int16_t, raw);
    case I32: WIDEN(int32_t, raw);
    case U8: WIDEN(uint8_t, raw);
    case U16: WIDEN(uint16_t, raw);
    case U32: WIDEN(uint32_t, raw);
    }
}

/* Largest distance in units in the last place of two runs of one floating type. Bits of numbers of one sign are ordered as the
   numbers are; distances across zero add up, and never exceed the unsigned type. */
#define ULPS(UNSIGNED, SIGN)                                                        \
    {                                                                               \
        UNSIGNED most = 0;                                                          \
        for (int i = 0; i < n; i++) {                                               \
            UNSIGNED a, b;                                                          \
            memcpy(&a, golden + (size_t)i * sizeof a, sizeof a);                    \
            memcpy(&b, candidate + (size_t)i * sizeof b, sizeof b);                 \
            UNSIGNED apart = (UNSIGNED)((UNSIGNED)(a & (UNSIGNED)~SIGN) + (UNSIGNED)(b & (UNSIGNED)~SIGN)); \
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
    case F16:
    case BF16: ULPS(uint16_t, 0x8000u)
    }
    return 0;
}

typedef struct {
    vec golden, candidate, diff, cross, absolute, signed_;
} Sums;

/* Add one strip of widened values, padded with zeros to whole vectors. */
INLINE void strip(const double *x, const double *y, int n, int64_t start, const Request *q, Result *r, Sums *s) {
    vec most = {0}, largest_golden = {0}, largest_candidate = {0};
    mask over_1e3 = {0}, over_5e3 = {0}, better = {0};
    const vec *xs = (const vec *)x, *ys = (const vec *)y;
    int vectors = (n + LANES - 1) / LANES;
    double max_rel = r->max_rel;
    for (int i = 0; i < vectors; i++) {
        vec a = xs[i], b = ys[i], d = b - a, ad = vabs(d), aa = vabs(a);
        s->golden += a * a;
        s->candidate += b * b;
        s->diff += d * d;
        s->cross += d * (a + b);
        s->absolute += ad;
        s->signed_ += d;
        most = vmax(ad, most);
        largest_golden = vmax(aa, largest_golden);
        largest_candidate = vmax(vabs(b), largest_candidate);
        over_1e3 -= ad > 1e-3 * aa;
        over_5e3 -= ad > 5e-3 * aa;
        better |= ad > max_rel * aa;
    }
    r->over_1e3 += hsum(over_1e3);
    r->over_5e3 += hsum(over_5e3);
    double strip_most = hmax(most), golden_most = hmax(largest_golden), candidate_most = hmax(largest_candidate);
    r->largest_golden = golden_most > r->largest_golden ? golden_most : r->largest_golden;
    r->largest_candidate = candidate_most > r->largest_candidate ? candidate_most : r->largest_candidate;
    if (strip_most > r->max_abs) {
        r->max_abs = strip_most;
        for (int i = 0; i < n; i++)
            if (fabs(y[i] - x[i]) == strip_most) { r->index = start + i; break; }
    }
    if (any(better))
        for (int i = 0; i < n; i++) {
            double relative = fabs(y[i] - x[i]) / fabs(x[i]); /* 0/0 is NaN, which is not greater */
            r->max_rel = relative > r->max_rel ? relative : r->max_rel;
        }
    if (q->rtol >= 0 && strip_most > 0) {
        mask over = {0};
        vec needed = {0};
        better = (mask){0};
        double used = r->used;
        for (int i = 0; i < vectors; i++) {
            vec a = xs[i], d = ys[i] - a, ad = vabs(d), relative = q->rtol * vabs(a), allowed = q->atol + relative;
            over -= ad > allowed;
            needed = vmax(ad - relative, needed);
            better |= ad > used * allowed;
        }
        r->over_tolerance += hsum(over);
        double strip_needed = hmax(needed);
        r->needed = strip_needed > r->needed ? strip_needed : r->needed;
        if (any(better))
            for (int i = 0; i < n; i++) {
                double share = fabs(y[i] - x[i]) / (q->atol + q->rtol * fabs(x[i]));
                r->used = share > r->used ? share : r->used;
            }
    }
    if (q->saturation > 0 && golden_most > q->saturation)
        for (int i = 0; i < n; i++) r->saturated += fabs(x[i]) > q->saturation && fabs(y[i]) == q->saturation;
}

/* Set aside what is not finite on both sides: counted, and zero from here on; raw bits too. */
INLINE void set_aside(double *x, double *y, char *golden, char *candidate, int n, const Request *q, Result *r) {
    size_t gw = WIDTH[q->golden], cw = WIDTH[q->candidate];
    for (int i = 0; i < n; i++) {
        if (isfinite(x[i]) && isfinite(y[i])) continue;
        r->golden_nan += isnan(x[i]) != 0;
        r->candidate_nan += isnan(y[i]) != 0;
        r->golden_inf += isinf(x[i]) != 0;
        r->candidate_inf += isinf(y[i]) != 0;
        r->mismatch += !((isnan(x[i]) && isnan(y[i])) || x[i] == y[i]);
        r->saturated += q->saturation > 0 && fabs(x[i]) > q->saturation && fabs(y[i]) == q->saturation;
        r->compared -= 1;
        x[i] = y[i] = 0.0;
        memset(golden + (size_t)i * gw, 0, gw);
        memset(candidate + (size_t)i * cw, 0, cw);
    }
}

CLONES static void chunk(const char *golden, const char *candidate, int n, int64_t start, const Request *q, Result *r, double *out) {
    double x[STRIP] __attribute__((aligned(64))), y[STRIP] __attribute__((aligned(64)));
    char g[STRIP * 8], c[STRIP * 8];
    size_t gw = WIDTH[q->golden], cw = WIDTH[q->candidate];
    int same = q->golden == q->candidate && q->golden <= BF16;
    const Result before = *r;
    for (int careful = 0; careful < 2; careful++) {
        Sums s;
        memset(&s, 0, sizeof s);
        *r = before;
        r->compared += n;
        for (int done = 0; done < n; done += STRIP) {
            int m = n - done < STRIP ? n - done : STRIP;
            const char *from_golden = golden + (size_t)done * gw, *from_candidate = candidate + (size_t)done * cw;
            widen(x, from_golden, q->golden, m);
            widen(y, from_candidate, q->candidate, m);
            for (int i = m; i % LANES; i++) x[i] = y[i] = 0.0;
            if (careful) {
                memcpy(g, from_golden, (size_t)m * gw);
                memcpy(c, from_candidate, (size_t)m * cw);
                set_aside(x, y, g, c, m, q, r);
                from_golden = g;
                from_candidate = c;
            }
            strip(x, y, m, start + done, q, r, &s);
            if (same) {
                uint64_t most = ulps(from_golden, from_candidate, q->golden, m);
                r->ulps = most > r->ulps ? most : r->ulps;
            }
        }
        out[0] = vsum(s.golden); out[1] = vsum(s.candidate); out[2] = vsum(s.diff);
        out[3] = vsum(s.cross); out[4] = vsum(s.absolute); out[5] = vsum(s.signed_);
        if (isfinite(out[0] + out[1] + out[2] + out[4])) break;
    }
}

/* Extrema, sum, sum of squares, NaN and Inf of one chunk's finite values. */
typedef struct {
    double min, max;
    int64_t nan, inf;
} Extent;

CLONES static void summarize_chunk(const char *from, int type, int n, Extent *e, double *out) {
    double x[STRIP] __attribute__((aligned(64)));
    vec sum = {0}, squares = {0};
    for (int done = 0; done < n; done += STRIP) {
        int m = n - done < STRIP ? n - done : STRIP;
        widen(x, from + (size_t)done * WIDTH[type], type, m);
        int vectors = (m + LANES - 1) / LANES;
        for (int i = m; i < vectors * LANES; i++) x[i] = x[m - 1]; /* the same extrema */
        const vec *xs = (const vec *)x;
        vec low = xs[0], high = xs[0], check = {0};
        for (int i = 0; i < vectors; i++) {
            low = vmin(xs[i], low);
            high = vmax(xs[i], high);
            check += xs[i] * 0; /* NaN for NaN and Inf */
        }
        double least = -hmax(-low), most = hmax(high);
        if (vsum(check) != 0) {
            least = INFINITY, most = -INFINITY;
            for (int i = 0; i < m; i++) {
                if (isfinite(x[i])) {
                    least = x[i] < least ? x[i] : least;
                    most = x[i] > most ? x[i] : most;
                } else {
                    e->nan += isnan(x[i]) != 0;
                    e->inf += isinf(x[i]) != 0;
                    x[i] = 0;
                }
            }
        }
        e->min = least < e->min ? least : e->min;
        e->max = most > e->max ? most : e->max;
        for (int i = m; i < vectors * LANES; i++) x[i] = 0;
        for (int i = 0; i < vectors; i++) {
            sum += xs[i];
            squares += xs[i] * xs[i];
        }
    }
    out[0] = vsum(sum);
    out[1] = vsum(squares);
}

/* Whether a buffer holds whole elements of the type, and sums has room for `each` doubles a chunk of them. */
static int fits(const Py_buffer *values, int type, int size, const Py_buffer *sums, int each) {
    if (size < 1 || type < 0 || type >= TYPES || values->len % (Py_ssize_t)WIDTH[type]) return 0;
    Py_ssize_t chunks = (values->len / (Py_ssize_t)WIDTH[type] + size - 1) / size;
    return sums->len / (Py_ssize_t)(each * sizeof(double)) >= chunks && (uintptr_t)sums->buf % sizeof(double) == 0;
}

static PyObject *summarize_block(PyObject *self, PyObject *args) {
    Py_buffer values, sums;
    int type, size;
    Extent e = {INFINITY, -INFINITY, 0, 0};
    (void)self;
    if (!PyArg_ParseTuple(args, "y*iiw*:summarize_block", &values, &type, &size, &sums)) return NULL;
    int valid = fits(&values, type, size, &sums, 2);
    if (valid) {
        Py_ssize_t n = values.len / (Py_ssize_t)WIDTH[type];
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t start = 0; start < n; start += size)
            summarize_chunk((const char *)values.buf + (size_t)start * WIDTH[type], type, (int)(n - start < size ? n - start : size), &e,
                            (double *)sums.buf + start / size * 2);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&values);
    PyBuffer_Release(&sums);
    if (!valid) {
        PyErr_SetString(PyExc_ValueError, "values must hold whole elements of the given type, and sums two float64 a chunk");
        return NULL;
    }
    return Py_BuildValue("ddLL", e.min, e.max, (long long)e.nan, (long long)e.inf);
}

static PyObject *measure_block(PyObject *self, PyObject *args) {
    Py_buffer golden, candidate, sums;
    Request q;
    Result r;
    int size;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*iiiw*ddd:measure_block", &golden, &candidate, &q.golden, &q.candidate, &size, &sums, &q.atol, &q.rtol,
                          &q.saturation))
        return NULL;
    memset(&r, 0, sizeof r);
    r.index = -1;
    int valid = fits(&golden, q.golden, size, &sums, SUMS) && fits(&candidate, q.candidate, size, &sums, SUMS) &&
                golden.len / (Py_ssize_t)WIDTH[q.golden] == candidate.len / (Py_ssize_t)WIDTH[q.candidate];
    if (valid) {
        Py_ssize_t n = golden.len / (Py_ssize_t)WIDTH[q.golden];
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t start = 0; start < n; start += size)
            chunk((const char *)golden.buf + (size_t)start * WIDTH[q.golden], (const char *)candidate.buf + (size_t)start * WIDTH[q.candidate],
                  (int)(n - start < size ? n - start : size), start, &q, &r, (double *)sums.buf + start / size * SUMS);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&golden);
    PyBuffer_Release(&candidate);
    PyBuffer_Release(&sums);
    if (!valid) {
        PyErr_SetString(PyExc_ValueError,
                        "golden and candidate must hold equally many whole elements of the given types, and sums six float64 a chunk");
        return NULL;
    }
    return Py_BuildValue("LdLdddLLLKLLLLLLdd", (long long)r.compared, r.max_abs, (long long)r.index, r.max_rel, r.used, r.needed, (long long)r.over_tolerance,
                         (long long)r.over_1e3, (long long)r.over_5e3, (unsigned long long)r.ulps, (long long)r.golden_nan,
                         (long long)r.candidate_nan, (long long)r.golden_inf, (long long)r.candidate_inf, (long long)r.mismatch,
                         (long long)r.saturated, r.largest_golden, r.largest_candidate);
}

static PyMethodDef methods[] = {
    {"measure_block", measure_block, METH_VARARGS,
     "measure_block(golden, candidate, golden_type, candidate_type, chunk, sums, atol, rtol, saturation) -> tuple, see bundle/kernel.py"},
    {"summarize_block", summarize_block, METH_VARARGS, "summarize_block(values, type, chunk, sums) -> tuple, see bundle/kernel.py"},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernel", "One pass over a block of tensors.", -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModule_Create(&module); }
