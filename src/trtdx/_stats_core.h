/* What is computed, without Python: statistics of one tensor, and differences between two. See _stats.c. */
#include <fenv.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define INLINE inline __attribute__((always_inline))
#define BLOCK 2048 /* elements looked at together: 16 KiB at most, so that the second look finds them in the L1 cache */
#define PAIRS 1024 /* compared together: also as doubles they stay in the L1 cache */
#define FLOATS_THERE 4 /* types whose pairs are read as they are: F64, F32, F16, BF16 */
#define QUANTILES 7
#define LEAST_SAMPLE 256
#define MOST_SAMPLE 1024

enum { ADDED = 1, EXCEEDS = 2 };
enum { F64, F32, F16, BF16, E4M3, E5M2, I8, I16, I32, I64, U8, U16, U32, U64, BOOL, CODES };
static const size_t SIZES[CODES] = {8, 4, 2, 2, 1, 1, 1, 2, 4, 8, 1, 2, 4, 8, 1};
static const unsigned PERMILLE[QUANTILES] = {10, 50, 250, 500, 750, 950, 990};

/* Elements of any address and any declared type. */
#define ANYWHERE(NAME, T) typedef T NAME __attribute__((may_alias, aligned(1)))
ANYWHERE(u16a, uint16_t);
ANYWHERE(i16a, int16_t);
ANYWHERE(u32a, uint32_t);
ANYWHERE(i32a, int32_t);
ANYWHERE(u64a, uint64_t);
ANYWHERE(i64a, int64_t);
typedef float f4 __attribute__((vector_size(16)));
typedef uint16_t u16x4 __attribute__((vector_size(8)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));

/* What stands in an index row; `STATISTICS` in capture/stats.py is its twin. */
typedef struct {
    uint64_t count, nan, positive, negative, zeros, subnormals;
    double min, max, mean, std, absmax, l2, quantiles[QUANTILES];
} Row;

typedef struct {
    uint64_t finite, nan, positive, negative, zeros, subnormals;
    double min, max, origin, mean, m2; /* the mean is counted from the origin, a value of the tensor */
} Sums;

/* `PAIRS` in capture/difference.py is its twin. */
typedef struct {
    uint64_t count, compared, differing, from_zero, nan_reference, nan_candidate, nan_both, inf_differing, inf_equal,
        worst_at;
    double max_abs, max_rel, dd, rr, cc, rc, d1, a1, block_max;
} Pairs;

typedef struct {
    double values[MOST_SAMPLE];
    double sorted[MOST_SAMPLE];
} Scratch;

typedef void (*Block)(const void *, size_t, Sums *, double);
typedef void (*Doubles)(const void *, size_t, double *);
typedef int (*PairsBlock)(const void *, const void *, size_t, Pairs *, double *, int);
typedef struct {
    Block block[CODES];
    Doubles doubles[CODES];
    PairsBlock pairs[FLOATS_THERE][FLOATS_THERE];
    void (*relative)(const double *, const double *, size_t, Pairs *);
} Lanes;

/* Adds a block of n values whose distances from `shift` have the sum s and the squares' sum q. */
static inline void add_moments(Sums *sums, size_t n, double shift, double s, double q) {
    if (!sums->finite) sums->origin = shift;
    double m2 = q - s * s / (double)n, mean = (shift - sums->origin) + s / (double)n;
    double before = (double)sums->finite, together = before + (double)n, step = mean - sums->mean;
    sums->mean += step * ((double)n / together);
    sums->m2 += (m2 > 0 ? m2 : 0) + step * step * (before * ((double)n / together));
    sums->finite += n;
}

#pragma GCC diagnostic ignored "-Wpsabi" /* vectors are passed between functions that are always inlined only */
#define TARGET
#define AS(name) name##_plain
#include "_stats_lanes.h"
#undef TARGET
#undef AS

#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define AS(name) name##_avx2
#define LANES_AVX2
#include "_stats_lanes.h"
#undef TARGET
#undef AS

/* Between which floats a candidate over its reference lies if its relative error is not above the worst so far.
 *
 * The worst is an error of two numbers of at most 11 bits, and so is what it is compared with. Where it is at most a
 * half, or a whole number, such quotients are further apart than floats are: limits just outside let all equal errors
 * pass, which are many among so few numbers, and none that is larger. Elsewhere the limits are inside. */
typedef struct {
    float low, high;
} Limits;

static inline Limits limits_of(double worst) {
    int outside = worst <= 0.5 || (worst <= 1024 && worst == floor(worst));
    double low = 1 - worst, high = 1 + worst;
    Limits at = {(float)low, (float)high};
    if (outside && at.low >= low) at.low = nextafterf(at.low, -INFINITY);
    if (outside && at.high <= high) at.high = nextafterf(at.high, INFINITY);
    if (!outside) at.low = nextafterf(at.low, INFINITY), at.high = nextafterf(at.high, -INFINITY);
    return at;
}

#define TARGET __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")))
#define AS(name) name##_avx512
#define LANES_AVX512
#include "_stats_lanes.h"
#endif

static const Lanes *lanes = &lanes_plain;

static int has_avx2(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
    return 0;
#endif
}

static int has_avx512(void) {
#if defined(__x86_64__)
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
    return 0;
#endif
}

/* Types of eight bits: 256 values, so they are counted. */

static double byte_value(int code, unsigned byte) {
    unsigned bits = byte & 0x7F;
    double sign = byte & 0x80 ? -1 : 1;
    if (code == BOOL) return byte != 0;
    if (code == I8) return (double)(int8_t)byte;
    if (code == U8) return (double)byte;
    if (code == E4M3) { /* no infinities; all ones is the NaN */
        if (bits == 0x7F) return NAN;
        return sign * (bits < 8 ? ldexp(bits, -9) : ldexp(8 + (bits & 7), (int)(bits >> 3) - 10));
    }
    if (bits >= 0x7C) return bits == 0x7C ? sign * INFINITY : NAN;
    return sign * (bits < 4 ? ldexp(bits, -16) : ldexp(4 + (bits & 3), (int)(bits >> 2) - 17));
}

static void count_truths(const unsigned char *p, size_t n, uint64_t counts[256]) {
    uint64_t zeros = 0;
    for (size_t i = 0; i < n;) { /* short runs, so that a byte-wide counter vectorises */
        size_t stop = n - i > 255 ? i + 255 : n;
        unsigned char few = 0;
        for (; i < stop; i++) few += p[i] == 0;
        zeros += few;
    }
    counts[0] = zeros;
    counts[1] = n - zeros;
}

static void count_bytes(const unsigned char *p, size_t n, uint64_t counts[256]) {
    while (n) { /* four tables, so that equal neighbours do not wait for each other */
        uint32_t tables[4][256] = {{0}};
        size_t now = n < 1u << 30 ? n : 1u << 30, i = 0;
        for (; i + 4 <= now; i += 4)
            for (int j = 0; j < 4; j++) tables[j][p[i + j]]++;
        for (; i < now; i++) tables[0][p[i]]++;
        for (int v = 0; v < 256; v++) counts[v] += (uint64_t)tables[0][v] + tables[1][v] + tables[2][v] + tables[3][v];
        p += now;
        n -= now;
    }
}

static void add_bytes(const unsigned char *p, size_t n, int code, Sums *sums) {
    uint64_t counts[256] = {0};
    double total = 0, m2 = 0;
    const unsigned normal = code == E4M3 ? 8 : code == E5M2 ? 4 : 0;
    if (code == BOOL) count_truths(p, n, counts);
    else count_bytes(p, n, counts);
    for (unsigned byte = 0; byte < 256; byte++) {
        double value = byte_value(code, byte);
        if (!counts[byte]) continue;
        if (isnan(value)) sums->nan += counts[byte];
        else if (isinf(value)) *(value > 0 ? &sums->positive : &sums->negative) += counts[byte];
        else {
            if (value == 0) sums->zeros += counts[byte];
            else if ((byte & 0x7F) < normal) sums->subnormals += counts[byte];
            if (value < sums->min) sums->min = value;
            if (value > sums->max) sums->max = value;
            total += value * (double)counts[byte];
            sums->finite += counts[byte];
        }
    }
    sums->mean = sums->finite ? total / (double)sums->finite : 0;
    for (unsigned byte = 0; byte < 256; byte++) {
        double from_mean = byte_value(code, byte) - sums->mean;
        if (counts[byte] && isfinite(from_mean)) m2 += from_mean * from_mean * (double)counts[byte];
    }
    sums->m2 = m2;
}

static void to_doubles(const unsigned char *p, size_t n, int code, double *to) {
    if (code == E4M3 || code == E5M2 || code == BOOL)
        for (size_t i = 0; i < n; i++) to[i] = byte_value(code, p[i]);
    else lanes->doubles[code](p, n, to);
}

/* The sample: one element from each of m equal stretches, at a place in it that differs from stretch to stretch, so
 * that no regular pattern of the tensor (a channel, a head) falls in step with it. */

static size_t sample_size(size_t n) {
    size_t m = n / LEAST_SAMPLE;
    if (n <= LEAST_SAMPLE) return n;
    return m < LEAST_SAMPLE ? LEAST_SAMPLE : m > MOST_SAMPLE ? MOST_SAMPLE : m;
}

#define GATHER(T)                                                                                           \
    for (size_t k = 0, start = 0, rest = 0; k < m; k++) {                                                   \
        size_t over = rest + more >= m, width = whole + over;                                               \
        size_t place = start + (size_t)(((uint64_t)((uint32_t)k * 0x9E3779B9u) * width) >> 32);             \
        memcpy(raw + k * sizeof(T), p + place * sizeof(T), sizeof(T));                                      \
        rest = rest + more - (over ? m : 0);                                                                \
        start += width;                                                                                     \
    }

/* Puts the sample's finite values into `s->values` and returns their number. */
static size_t sample(const unsigned char *p, size_t n, int code, int finite, Scratch *s) {
    size_t m = sample_size(n), whole = m ? n / m : 0, more = m ? n % m : 0, kept = 0;
    unsigned char *raw = (unsigned char *)s->sorted;
    switch (SIZES[code]) {
    case 1: GATHER(uint8_t) break;
    case 2: GATHER(uint16_t) break;
    case 4: GATHER(uint32_t) break;
    default: GATHER(uint64_t)
    }
    to_doubles(raw, m, code, s->values);
    if (finite) return m;
    for (size_t k = 0; k < m; k++) {
        s->values[kept] = s->values[k];
        kept += isfinite(s->values[k]) != 0;
    }
    return kept;
}

/* A value's bin, the larger the value the higher: eight to a power of two down to 2^-16 of the largest, or equal
 * ones where all values lie close together. */
static inline unsigned char bin_of(double value, double low, double scale, int close) {
    float part = (float)((value - low) * scale);
    uint32_t bits;
    if (close) return (unsigned char)part;
    part += copysignf(0x1p-16f, part);
    memcpy(&bits, &part, 4);
    uint32_t size = ((bits & 0x7FFFFFFFu) - 0x37800000u) >> 20;
    return (unsigned char)(bits >> 31 ? 127 - size : 128 + size);
}

static int by_value(const void *a, const void *b) {
    double x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

/* Sorts a few values by insertion; many that are far from sorted by the library. */
static void sort_bin(double *v, size_t n) {
    size_t moves = 0;
    for (size_t i = 1; i < n; i++) {
        double value = v[i];
        size_t j = i;
        for (; j && v[j - 1] > value; j--) v[j] = v[j - 1];
        v[j] = value;
        moves += i - j;
        if (moves > 16 * n) {
            qsort(v, n, sizeof *v, by_value);
            return;
        }
    }
}

/* Sorts `s->values`, which all lie between min and max, into `s->sorted` by bins, and tells where the bins end. */
static void sort_into_bins(Scratch *s, size_t m, double min, double max, uint16_t ends[257]) {
    unsigned char bins[MOST_SAMPLE];
    double largest = fmax(fabs(min), fabs(max)), span = max / 2 - min / 2;
    int close = span < largest / 4;
    double low = close ? min : 0, scale = close ? 127.9 / span : 0.99 / largest;
    if (!(scale < INFINITY)) low = 0, scale = 0; /* all equal, or next to nothing */
    memset(ends, 0, 257 * sizeof *ends);
    for (size_t k = 0; k < m; k++) bins[k] = bin_of(s->values[k], low, scale, close);
    for (size_t k = 0; k < m; k++) ends[bins[k] + 1]++;
    for (int bin = 0; bin < 256; bin++) ends[bin + 1] = (uint16_t)(ends[bin + 1] + ends[bin]);
    for (size_t k = 0; k < m; k++) s->sorted[ends[bins[k]]++] = s->values[k];
}

/* Only the bins in which a wanted rank lies are sorted inside. */
static void quantiles(const unsigned char *p, size_t n, int code, const Sums *sums, Scratch *s, double *to) {
    size_t m = sample(p, n, code, sums->finite == n, s);
    uint16_t ends[257];
    int bin = 0, ready = -1;
    if (m) sort_into_bins(s, m, sums->min, sums->max, ends);
    for (int q = 0; q < QUANTILES; q++) {
        size_t rank = m ? (PERMILLE[q] * (m - 1) + 500) / 1000 : 0;
        while (m && ends[bin] <= rank) bin++;
        size_t start = bin ? ends[bin - 1] : 0;
        if (m && bin != ready) sort_bin(s->sorted + start, ends[bin] - start);
        ready = bin;
        to[q] = m ? s->sorted[rank] + 0.0 : NAN; /* + 0.0: never minus zero */
    }
}

/* Statistics of one tensor. */

static void add_all(const unsigned char *p, size_t n, int code, Sums *sums, double scale) {
    memset(sums, 0, sizeof *sums);
    sums->min = INFINITY;
    sums->max = -INFINITY;
    if (lanes->block[code] == NULL) add_bytes(p, n, code, sums);
    else
        for (size_t i = 0; i < n; i += BLOCK)
            lanes->block[code](p + i * SIZES[code], n - i < BLOCK ? n - i : BLOCK, sums, scale);
}

static void measure_one(const unsigned char *p, size_t n, int code, Scratch *s, Row *row) {
    Sums sums;
    int exponent = 0;
    add_all(p, n, code, &sums, 1);
    double absmax = fmax(fabs(sums.min), fabs(sums.max));
    if (code == F64 && sums.finite && absmax > 0) {
        frexp(absmax, &exponent);
        if (abs(exponent) < 400) exponent = 0; /* squares and their sum fit */
        else if (exponent < -1000) exponent = -1000;
    }
    if (exponent) add_all(p, n, code, &sums, ldexp(1, -exponent));
    double count = (double)sums.finite, mean = sums.origin + sums.mean;
    memset(row, 0, sizeof *row);
    row->count = n;
    row->nan = sums.nan;
    row->positive = sums.positive;
    row->negative = sums.negative;
    row->zeros = sums.zeros;
    row->subnormals = sums.subnormals;
    row->min = sums.finite ? sums.min + 0.0 : NAN;
    row->max = sums.finite ? sums.max + 0.0 : NAN;
    row->absmax = sums.finite ? absmax : NAN;
    row->mean = sums.finite ? ldexp(mean, exponent) + 0.0 : NAN;
    row->std = sums.finite ? ldexp(sqrt(sums.m2 / count), exponent) : NAN;
    row->l2 = ldexp(sqrt(sums.m2 + count * mean * mean), exponent);
    quantiles(p, n, code, &sums, s, row->quantiles);
}

/* Differences of two tensors. */

/* Counts and takes out the pairs of which one is not finite; returns how many are left. */
static size_t take_out(double *r, double *c, uint32_t *at, size_t n, Pairs *pairs) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (isfinite(r[i]) && isfinite(c[i])) {
            r[kept] = r[i];
            c[kept] = c[i];
            at[kept++] = (uint32_t)i;
        } else if (isnan(r[i]) || isnan(c[i])) {
            pairs->nan_both += isnan(r[i]) && isnan(c[i]);
            pairs->nan_reference += isnan(r[i]) && !isnan(c[i]);
            pairs->nan_candidate += !isnan(r[i]) && isnan(c[i]);
        } else if (r[i] == c[i]) pairs->inf_equal++;
        else pairs->inf_differing++;
    }
    return kept;
}

typedef struct {
    double reference[PAIRS], candidate[PAIRS];
    uint32_t at[PAIRS];
} Pair;

typedef struct {
    const unsigned char *address;
    int code;
} Elements;

static void as_doubles(Elements r, Elements c, size_t first, size_t n, Pair *b) {
    to_doubles(r.address + first * SIZES[r.code], n, r.code, b->reference);
    to_doubles(c.address + first * SIZES[c.code], n, c.code, b->candidate);
}

/* Adds pairs of floating-point types as they lie there, if all are finite. */
static int compare_there(Elements r, Elements c, size_t first, size_t n, Pairs *pairs, double *row) {
    if (r.code >= FLOATS_THERE || c.code >= FLOATS_THERE) return 0;
    return lanes->pairs[r.code][c.code](r.address + first * SIZES[r.code], c.address + first * SIZES[c.code], n, pairs,
                                        row, 0);
}

static void compare_block(Elements r, Elements c, size_t first, size_t n, Pair *b, Pairs *pairs, double *row) {
    size_t kept = n;
    int done = compare_there(r, c, first, n, pairs, row), whole = done;
    if (!whole || done & EXCEEDS || pairs->block_max > pairs->max_abs) as_doubles(r, c, first, n, b);
    if (!whole) {
        kept = take_out(b->reference, b->candidate, b->at, n, pairs);
        done = lanes->pairs[F64][F64](b->reference, b->candidate, kept, pairs, row, 1);
    }
    if (done & EXCEEDS) lanes->relative(b->reference, b->candidate, kept, pairs);
    if (pairs->block_max > pairs->max_abs) {
        size_t i = 0;
        while (i < kept && fabs(b->candidate[i] - b->reference[i]) != pairs->block_max) i++;
        pairs->max_abs = pairs->block_max;
        pairs->worst_at = pairs->count + (whole || i == kept ? i : b->at[i]);
    }
    row[2] += (double)kept;
    pairs->compared += kept;
    pairs->count += n;
}

static void compare_all(Elements r, Elements c, size_t n, size_t length, Pair *b, Pairs *pairs, double *rows) {
    double worst = pairs->max_rel;
    if (r.code == c.code && (r.code == F16 || r.code == BF16)) pairs->max_rel = 0; /* `limits_of` wants one of theirs */
    for (size_t start = 0; start < n; start += length) {
        size_t end = n - start < length ? n : start + length;
        double *row = rows + start / length * 3;
        for (size_t i = start; i < end; i += PAIRS)
            compare_block(r, c, i, end - i < PAIRS ? end - i : PAIRS, b, pairs, row);
        pairs->dd += row[0];
        pairs->rr += row[1];
    }
    if (worst > pairs->max_rel) pairs->max_rel = worst;
}
