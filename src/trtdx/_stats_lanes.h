/* The loops over elements, included by _stats_core.h once for each instruction set: `TARGET` is the functions'
 * attribute, `AS(name)` their name there, `LANES_AVX2` is set where AVX2, FMA and F16C may be used, `LANES_AVX512` where
 * AVX-512 F, BW, DQ and VL may be as well.
 *
 * Written as plain loops over integers, which compilers turn into vector code by themselves, and as loops over
 * vectors of doubles (an extension of GCC and Clang; two to a vector fit any processor's) where floating-point sums
 * must not be reordered by the compiler. A block is first looked at as integers: extremes, zeros, subnormals, and
 * whether a NaN or an infinity is in it. Only if there is one are the finite values copied out; sums see finite
 * values only.
 */

#ifdef LANES_AVX2
#define WIDTH 4
#else
#define WIDTH 2
#endif
#define PARTS (4 / WIDTH)
#define DV AS(dv)
#define LV AS(lv)
#define FOUR AS(Four)
#define VECTOR(NAME, T) typedef T AS(NAME) __attribute__((vector_size(WIDTH * sizeof(T))))
VECTOR(dv, double);
VECTOR(fv, float);
VECTOR(i8v, int8_t);
VECTOR(u8v, uint8_t);
VECTOR(i16v, int16_t);
VECTOR(u16v, uint16_t);
VECTOR(i32v, int32_t);
VECTOR(u32v, uint32_t);
VECTOR(lv, int64_t);
VECTOR(u64v, uint64_t);

/* Four elements as doubles. */
typedef struct {
    DV part[PARTS];
} FOUR;

#define WIDE(NAME, FROM)                                                    \
    static INLINE TARGET FOUR AS(NAME)(const void *p) {                     \
        FOUR four;                                                          \
        for (int h = 0; h < PARTS; h++) {                                   \
            AS(FROM) v;                                                     \
            memcpy(&v, (const char *)p + (size_t)h * sizeof v, sizeof v);   \
            four.part[h] = __builtin_convertvector(v, DV);                  \
        }                                                                   \
        return four;                                                        \
    }
WIDE(wide_f64, dv)
WIDE(wide_i8, i8v)
WIDE(wide_u8, u8v)
WIDE(wide_i16, i16v)
WIDE(wide_u16, u16v)
WIDE(wide_i32, i32v)
WIDE(wide_u32, u32v)
WIDE(wide_i64, lv)
WIDE(wide_u64, u64v)

#if defined(LANES_AVX2) /* told how, as GCC 12 converts by halves if not */
static INLINE TARGET FOUR AS(wide_f32)(const void *p) { return (FOUR){{(DV)_mm256_cvtps_pd(_mm_loadu_ps(p))}}; }

static INLINE TARGET FOUR AS(wide_bf16)(const void *p) {
    __m128i bits = _mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)p)), 16);
    return (FOUR){{(DV)_mm256_cvtps_pd(_mm_castsi128_ps(bits))}};
}

static INLINE TARGET FOUR AS(wide_f16)(const void *p) {
    return (FOUR){{(DV)_mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)p)))}};
}
#elif defined(__aarch64__) && defined(__ARM_NEON) /* and here one by one */
static INLINE FOUR AS(wide_floats)(float32x4_t v) {
    return (FOUR){{(DV)vcvt_f64_f32(vget_low_f32(v)), (DV)vcvt_high_f64_f32(v)}};
}

static INLINE FOUR AS(wide_f32)(const void *p) { return AS(wide_floats)(vreinterpretq_f32_u8(vld1q_u8(p))); }

static INLINE FOUR AS(wide_bf16)(const void *p) {
    return AS(wide_floats)(vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16)));
}

static INLINE FOUR AS(wide_f16)(const void *p) {
    return AS(wide_floats)(vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))));
}
#else
WIDE(wide_f32, fv)

static INLINE FOUR AS(wide_bf16)(const void *p) {
    u16x4 v;
    memcpy(&v, p, sizeof v);
    u32x4 bits = __builtin_convertvector(v, u32x4) << 16;
    return AS(wide_f32)(&bits);
}

static INLINE FOUR AS(wide_f16)(const void *p) {
    u16x4 v;
    memcpy(&v, p, sizeof v);
    u32x4 bits = __builtin_convertvector(v, u32x4), special = (u32x4)((bits & 0x7C00u) == 0x7C00u);
    /* shifted into place the exponent is 112 too small; right for all finite values, subnormals too */
    u32x4 finite = (u32x4)((f4)((bits & 0x7FFFu) << 13) * 0x1p112f) & ~special;
    u32x4 all = finite | ((((bits & 0x3FFu) << 13) | 0x7F800000u) & special) | (bits & 0x8000u) << 16;
    return AS(wide_f32)(&all);
}
#endif

static INLINE TARGET void AS(raise)(DV *top, const DV *value) {
#ifdef LANES_AVX2
    *top = (DV)_mm256_max_pd((__m256d)*value, (__m256d)*top);
#else
    LV mask = *value > *top;
    *top = (DV)(((LV)*value & mask) | ((LV)*top & ~mask));
#endif
}

static INLINE TARGET double AS(total)(const DV *v) {
#ifdef LANES_AVX2
    return ((*v)[0] + (*v)[1]) + ((*v)[2] + (*v)[3]);
#else
    return (*v)[0] + (*v)[1];
#endif
}

/* Adds a block's moments to the whole's. Taken about the block's first value, so that nothing cancels when the mean
 * is large; the rest of a last vector repeats that value and so counts nothing. `scale` is 1 but for values whose
 * squares a double cannot hold. */
#define ADD_FOUR(FROM, NUMBER)                                      \
    {                                                               \
        FOUR four = FROM;                                           \
        for (int h = 0; h < PARTS; h++) {                           \
            DV d = four.part[h] * scale - shift;                    \
            a[((NUMBER) * PARTS + h) % 4] += d;                     \
            b[((NUMBER) * PARTS + h) % 4] += d * d;                 \
        }                                                           \
    }
#define MOMENTS(NAME, T, WIDE)                                                              \
    static TARGET void AS(NAME)(const T *p, size_t n, Sums *sums, double scale) {           \
        T first[4] = {p[0], p[0], p[0], p[0]}, rest[16];                                    \
        DV shift = AS(WIDE)(first).part[0] * scale, a[4] = {{0}}, b[4] = {{0}};             \
        size_t i = 0;                                                                       \
        for (; i + 16 <= n; i += 16) {                                                      \
            ADD_FOUR(AS(WIDE)(p + i), 0)                                                    \
            ADD_FOUR(AS(WIDE)(p + i + 4), 1)                                                \
            ADD_FOUR(AS(WIDE)(p + i + 8), 2)                                                \
            ADD_FOUR(AS(WIDE)(p + i + 12), 3)                                               \
        }                                                                                   \
        if (i < n) {                                                                        \
            for (size_t j = 0; j < 16; j++) rest[j] = i + j < n ? p[i + j] : p[0];          \
            for (int j = 0; j < 4; j++) ADD_FOUR(AS(WIDE)(rest + 4 * j), j)                 \
        }                                                                                   \
        a[0] = (a[0] + a[1]) + (a[2] + a[3]), b[0] = (b[0] + b[1]) + (b[2] + b[3]);         \
        add_moments(sums, n, shift[0], AS(total)(a), AS(total)(b));                         \
    }
MOMENTS(moments_f64, u64a, wide_f64)
MOMENTS(moments_f32, u32a, wide_f32)
MOMENTS(moments_f16, u16a, wide_f16)
MOMENTS(moments_bf16, u16a, wide_bf16)
MOMENTS(moments_i16, i16a, wide_i16)
MOMENTS(moments_u16, u16a, wide_u16)
MOMENTS(moments_i32, i32a, wide_i32)
MOMENTS(moments_u32, u32a, wide_u32)
MOMENTS(moments_i64, i64a, wide_i64)
MOMENTS(moments_u64, u64a, wide_u64)

/* A block of floating-point numbers as bits: `order` turns them into integers that sort like the numbers. */
#define FLOATS(NAME, U, S, UA, WIDE, MOMENTS, TOP, INFINITE, NORMAL)                                        \
    static TARGET void AS(NAME##_finite)(const UA *p, size_t n, Sums *sums, double scale, S low, S high) {  \
        U lanes[4] = {(U)(low ^ ((low >> TOP) & (S)~((U)1 << TOP))), (U)(high ^ ((high >> TOP) & (S)~((U)1 << TOP)))}; \
        DV ends = AS(WIDE)(lanes).part[0];                                                                  \
        if (n && ends[0] < sums->min) sums->min = ends[0];                                                  \
        if (n && ends[1] > sums->max) sums->max = ends[1];                                                  \
        if (n) AS(MOMENTS)(p, n, sums, scale);                                                              \
    }                                                                                                       \
    static TARGET void AS(NAME)(const void *from, size_t n, Sums *sums, double scale) {                     \
        const UA *p = from;                                                                                 \
        const U magnitude = (U)~((U)1 << TOP);                                                              \
        const S lowest = (S)((U)1 << TOP), highest = (S)magnitude;                                          \
        U zeros = 0, small = 0;                                                                             \
        S largest = 0, low = highest, high = lowest;                                                        \
        for (size_t i = 0; i < n; i++) {                                                                    \
            S bits = (S)p[i], size = (S)(p[i] & magnitude), order = bits ^ ((bits >> TOP) & (S)magnitude);  \
            zeros += size == 0;                                                                             \
            small += size < (S)(NORMAL);                                                                    \
            largest = size > largest ? size : largest;                                                      \
            low = order < low ? order : low;                                                                \
            high = order > high ? order : high;                                                             \
        }                                                                                                   \
        sums->zeros += zeros;                                                                               \
        sums->subnormals += (U)(small - zeros);                                                             \
        if (largest < (S)(INFINITE)) {                                                                      \
            AS(NAME##_finite)(p, n, sums, scale, low, high);                                                \
            return;                                                                                         \
        }                                                                                                   \
        U finite[BLOCK];                                                                                    \
        size_t kept = 0;                                                                                    \
        U nan = 0, positive = 0, negative = 0;                                                              \
        low = highest, high = lowest;                                                                       \
        for (size_t i = 0; i < n; i++) {                                                                    \
            U size = p[i] & magnitude;                                                                      \
            nan += size > (U)(INFINITE);                                                                    \
            positive += p[i] == (U)(INFINITE);                                                              \
            negative += p[i] == (U)((INFINITE) | ((U)1 << TOP));                                            \
        }                                                                                                   \
        for (size_t i = 0; i < n; i++) {                                                                    \
            finite[kept] = p[i];                                                                            \
            kept += (U)(p[i] & magnitude) < (U)(INFINITE);                                                  \
        }                                                                                                   \
        for (size_t i = 0; i < kept; i++) {                                                                 \
            S bits = (S)finite[i], order = bits ^ ((bits >> TOP) & (S)magnitude);                           \
            low = order < low ? order : low;                                                                \
            high = order > high ? order : high;                                                             \
        }                                                                                                   \
        sums->nan += nan;                                                                                   \
        sums->positive += positive;                                                                         \
        sums->negative += negative;                                                                         \
        AS(NAME##_finite)((const UA *)finite, kept, sums, scale, low, high);                                \
    }
FLOATS(block_f64, uint64_t, int64_t, u64a, wide_f64, moments_f64, 63, 0x7FF0000000000000ull, 0x0010000000000000ull)
FLOATS(block_f32, uint32_t, int32_t, u32a, wide_f32, moments_f32, 31, 0x7F800000u, 0x00800000u)
FLOATS(block_f16, uint16_t, int16_t, u16a, wide_f16, moments_f16, 15, 0x7C00u, 0x0400u)
FLOATS(block_bf16, uint16_t, int16_t, u16a, wide_bf16, moments_bf16, 15, 0x7F80u, 0x0080u)

#define INTEGERS(NAME, T, TA, MOMENTS)                                                      \
    static TARGET void AS(NAME)(const void *from, size_t n, Sums *sums, double scale) {     \
        const TA *p = from;                                                                 \
        T low = p[0], high = p[0];                                                          \
        uint32_t zeros = 0;                                                                 \
        for (size_t i = 0; i < n; i++) {                                                    \
            zeros += p[i] == 0;                                                             \
            low = p[i] < low ? p[i] : low;                                                  \
            high = p[i] > high ? p[i] : high;                                               \
        }                                                                                   \
        sums->zeros += zeros;                                                               \
        if ((double)low < sums->min) sums->min = (double)low;                               \
        if ((double)high > sums->max) sums->max = (double)high;                             \
        AS(MOMENTS)(p, n, sums, scale);                                                     \
    }
INTEGERS(block_i16, int16_t, i16a, moments_i16)
INTEGERS(block_u16, uint16_t, u16a, moments_u16)
INTEGERS(block_i32, int32_t, i32a, moments_i32)
INTEGERS(block_u32, uint32_t, u32a, moments_u32)
INTEGERS(block_i64, int64_t, i64a, moments_i64)
INTEGERS(block_u64, uint64_t, u64a, moments_u64)

/* Elements as doubles, for the sample and for comparisons. */
#define DOUBLES(NAME, T, WIDE)                                                                      \
    static TARGET void AS(NAME)(const void *from, size_t n, double *to) {                           \
        const T *p = from;                                                                          \
        size_t i = 0;                                                                               \
        for (; i + 4 <= n; i += 4) {                                                                \
            FOUR v = AS(WIDE)(p + i);                                                               \
            for (int h = 0; h < PARTS; h++) memcpy(to + i + h * WIDTH, &v.part[h], sizeof(DV));     \
        }                                                                                           \
        if (i < n) {                                                                                \
            T rest[4] = {0};                                                                        \
            memcpy(rest, p + i, (n - i) * sizeof(T));                                               \
            FOUR v = AS(WIDE)(rest);                                                                \
            memcpy(to + i, &v, (n - i) * sizeof(double));                                           \
        }                                                                                           \
    }
DOUBLES(doubles_f64, u64a, wide_f64)
DOUBLES(doubles_f32, u32a, wide_f32)
DOUBLES(doubles_f16, u16a, wide_f16)
DOUBLES(doubles_bf16, u16a, wide_bf16)
DOUBLES(doubles_i16, i16a, wide_i16)
DOUBLES(doubles_u16, u16a, wide_u16)
DOUBLES(doubles_i32, i32a, wide_i32)
DOUBLES(doubles_u32, u32a, wide_u32)
DOUBLES(doubles_i64, i64a, wide_i64)
DOUBLES(doubles_u64, u64a, wide_u64)
DOUBLES(doubles_i8, int8_t, wide_i8)
DOUBLES(doubles_u8, uint8_t, wide_u8)

/* Finds the largest relative error of a block, and counts the pairs that differ where the reference is zero. */
static TARGET void AS(relative)(const double *reference, const double *candidate, size_t n, Pairs *pairs) {
    double worst = pairs->max_rel;
    uint64_t from_zero = 0;
    for (size_t i = 0; i < n; i++) {
        double r = reference[i], size = fabs(candidate[i] - r);
        double relative = r == 0 ? 0 : size / fabs(r);
        from_zero += r == 0 && size != 0;
        worst = relative > worst ? relative : worst;
    }
    pairs->max_rel = worst;
    pairs->from_zero += from_zero;
}

static INLINE TARGET double AS(largest)(const DV *v) {
    double found = (*v)[0];
    for (int j = 1; j < WIDTH; j++) found = (*v)[j] > found ? (*v)[j] : found;
    return found;
}

static INLINE TARGET int64_t AS(count)(const LV *v) {
    int64_t found = (*v)[0];
    for (int j = 1; j < WIDTH; j++) found += (*v)[j];
    return found;
}

/* Adds a block of pairs as they lie there; answers with `ADDED`, `EXCEEDS` or nothing.
 *
 * Nothing is divided: `EXCEEDS` tells that an error is larger than the worst relative one so far allows, which is
 * seldom, and has `relative` look. Against a zero any error is. If a pair is not finite, neither is the sum of errors;
 * then nothing is added, unless the caller knows that all are: differences of finite doubles may overflow. The rest of a
 * last vector is pairs of zeros, which change nothing. */
#define ADD_PAIRS(FROM_R, FROM_C)                                                       \
    {                                                                                   \
        FOUR four_r = FROM_R, four_c = FROM_C;                                          \
        for (int h = 0; h < PARTS; h++) {                                               \
            DV r = four_r.part[h], c = four_c.part[h], d = c - r;                       \
            DV size = (DV)((LV)d & unsigned_part);                                      \
            above |= size > (DV)((LV)(r * worst) & unsigned_part);                      \
            differing -= d != 0;                                                        \
            AS(raise)(&top, &size);                                                     \
            dd += d * d;                                                                \
            rr += r * r;                                                                \
            cc += c * c;                                                                \
            rc += r * c;                                                                \
            d1 += d;                                                                    \
            a1 += size;                                                                 \
        }                                                                               \
    }
#define PAIRED(NAME, R, WIDE_R, C, WIDE_C)                                                                  \
    static TARGET int AS(NAME)(const void *reference, const void *candidate, size_t n, Pairs *pairs,        \
                               double *row, int all_finite) {                                               \
        const R *p = reference;                                                                             \
        const C *q = candidate;                                                                             \
        const LV unsigned_part = (LV){0} + INT64_MAX;                                                       \
        const DV worst = (DV){0} + (pairs->max_rel < DBL_MAX ? pairs->max_rel : DBL_MAX);                   \
        DV top = {0}, dd = {0}, rr = {0}, cc = {0}, rc = {0}, d1 = {0}, a1 = {0};                           \
        LV differing = {0}, above = {0};                                                                    \
        size_t i = 0;                                                                                       \
        for (; i + 4 <= n; i += 4) ADD_PAIRS(AS(WIDE_R)(p + i), AS(WIDE_C)(q + i))                          \
        if (i < n) {                                                                                        \
            R last_r[4] = {0};                                                                              \
            C last_c[4] = {0};                                                                              \
            memcpy(last_r, p + i, (n - i) * sizeof(R));                                                     \
            memcpy(last_c, q + i, (n - i) * sizeof(C));                                                     \
            ADD_PAIRS(AS(WIDE_R)(last_r), AS(WIDE_C)(last_c))                                               \
        }                                                                                                   \
        double sizes = AS(total)(&a1);                                                                      \
        if (!(sizes <= DBL_MAX) && !all_finite) return 0;                                                   \
        row[0] += AS(total)(&dd);                                                                           \
        row[1] += AS(total)(&rr);                                                                           \
        pairs->cc += AS(total)(&cc);                                                                        \
        pairs->rc += AS(total)(&rc);                                                                        \
        pairs->d1 += AS(total)(&d1);                                                                        \
        pairs->a1 += sizes;                                                                                 \
        pairs->block_max = AS(largest)(&top);                                                               \
        pairs->differing += (uint64_t)AS(count)(&differing);                                                \
        return ADDED | (AS(count)(&above) ? EXCEEDS : 0);                                                   \
    }
#define PAIRED_WITH(NAME, R, WIDE_R)                \
    PAIRED(NAME##_f64, R, WIDE_R, u64a, wide_f64)   \
    PAIRED(NAME##_f32, R, WIDE_R, u32a, wide_f32)   \
    PAIRED(NAME##_f16, R, WIDE_R, u16a, wide_f16)   \
    PAIRED(NAME##_bf16, R, WIDE_R, u16a, wide_bf16)
PAIRED_WITH(pairs_f64, u64a, wide_f64)
PAIRED_WITH(pairs_f32, u32a, wide_f32)
PAIRED_WITH(pairs_f16, u16a, wide_f16)
PAIRED_WITH(pairs_bf16, u16a, wide_bf16)

#ifdef LANES_AVX512
/* Pairs of one type of sixteen bits, sixteen at a time; else as PAIRED.
 *
 * Widening to doubles is most of the work, so little else is done on doubles. Whether an error exceeds the worst
 * relative one is first asked of floats, which says yes too often but never too seldom (`limits_of`); `exceeds` then
 * looks closely at the few pairs around. Equal pairs are counted as bits, zeros of unlike sign apart. The sum of
 * products comes from the sums of squares, unless these are so far apart that too few digits would be left. */
#define CLOSELY 64 /* pairs; few, as equal errors of other sizes than `limits_of` lets pass may be anywhere */
#define AHEAD 1024 /* bytes fetched ahead: one thread alone does not keep the memory busy enough without */

static TARGET size_t AS(unlike_zeros)(const u16a *p, const u16a *q, size_t n) {
    uint16_t found = 0; /* at most PAIRS */
    for (size_t i = 0; i < n; i++) found += (uint16_t)((p[i] ^ q[i]) == 0x8000 && (p[i] | q[i]) == 0x8000);
    return found;
}

#define LOW_FLOATS_BF16(p) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)(p)), 16))
#define HIGH_FLOATS_BF16(p) /* the elements at odd places: as long as all are seen, their order is no matter */ \
    _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256((const __m256i *)(p)), _mm256_set1_epi32(-0x10000)))
#define LOW_FLOATS_F16(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))
#define HIGH_FLOATS_F16(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p) + 1))

#define ADD_EIGHT(FROM_R, FROM_C)                                                                           \
    {                                                                                                       \
        __m256 r32 = FROM_R, c32 = FROM_C;                                                                  \
        __m256i over = _mm256_castps_si256(_mm256_fmsub_ps(high, r32, c32));                                \
        __m256i under = _mm256_castps_si256(_mm256_fnmadd_ps(low, r32, c32));                               \
        above = _mm256_ternarylogic_epi32(above, over, under, 0xF6); /* above | (over ^ under), for the sign */ \
        __m512d r = _mm512_cvtps_pd(r32), c = _mm512_cvtps_pd(c32), d = _mm512_sub_pd(c, r);                \
        __m512d size = _mm512_abs_pd(d);                                                                    \
        top = _mm512_max_pd(size, top);                                                                     \
        dd = _mm512_fmadd_pd(d, d, dd);                                                                     \
        rr = _mm512_fmadd_pd(r, r, rr);                                                                     \
        cc = _mm512_fmadd_pd(c, c, cc);                                                                     \
        d1 = _mm512_add_pd(d1, d);                                                                          \
        a1 = _mm512_add_pd(a1, size);                                                                       \
    }
#define ADD_SIXTEEN(P, Q, TYPE)                                                                             \
    {                                                                                                       \
        __m256i bits_r = _mm256_loadu_si256((const __m256i *)(P)), bits_c = _mm256_loadu_si256((const __m256i *)(Q)); \
        equal += (unsigned)__builtin_popcount(_mm256_cmpeq_epi16_mask(bits_r, bits_c));                     \
        negated |= _mm256_cmpeq_epi16_mask(_mm256_xor_si256(bits_r, bits_c), _mm256_set1_epi16(-0x8000));   \
        ADD_EIGHT(LOW_FLOATS_##TYPE(P), LOW_FLOATS_##TYPE(Q))                                               \
        ADD_EIGHT(HIGH_FLOATS_##TYPE(P), HIGH_FLOATS_##TYPE(Q))                                             \
    }
#define PAIRED_SIXTEEN(NAME, TYPE, WIDE, USUAL)                                                             \
    static TARGET int AS(NAME##_exceeds)(const u16a *p, const u16a *q, size_t n, double worst) {            \
        const LV unsigned_part = (LV){0} + INT64_MAX;                                                       \
        LV above = {0};                                                                                     \
        for (size_t i = 0; i < n; i += 4) {                                                                 \
            DV r = AS(WIDE)(p + i).part[0], d = AS(WIDE)(q + i).part[0] - r;                                \
            above |= (DV)((LV)d & unsigned_part) > (DV)((LV)(r * worst) & unsigned_part);                   \
        }                                                                                                   \
        return AS(count)(&above) != 0;                                                                      \
    }                                                                                                       \
    static TARGET int AS(NAME)(const void *reference, const void *candidate, size_t n, Pairs *pairs,        \
                               double *row, int all_finite) {                                               \
        const u16a *p = reference, *q = candidate;                                                          \
        const double worst = pairs->max_rel < 0x1p100 ? pairs->max_rel : 0x1p100;                           \
        const Limits limits = limits_of(worst);                                                             \
        const __m256 low = _mm256_set1_ps(limits.low), high = _mm256_set1_ps(limits.high);                  \
        __m512d top = _mm512_setzero_pd(), dd = top, rr = top, cc = top, d1 = top, a1 = top;                \
        uint64_t equal = 0;                                                                                 \
        unsigned negated = 0;                                                                               \
        int exceeds = 0;                                                                                    \
        size_t whole = n / 16 * 16, counted = whole;                                                        \
        for (size_t i = 0; i < whole;) {                                                                    \
            size_t first = i, stop = whole - i < CLOSELY ? whole : i + CLOSELY;                             \
            __m256i above = _mm256_setzero_si256();                                                         \
            for (size_t j = 0; j < CLOSELY * sizeof *p; j += 64) {                                          \
                _mm_prefetch((const char *)((uintptr_t)(p + i) + AHEAD + j), _MM_HINT_T0);                  \
                _mm_prefetch((const char *)((uintptr_t)(q + i) + AHEAD + j), _MM_HINT_T0);                  \
            }                                                                                               \
            for (; i < stop; i += 16) ADD_SIXTEEN(p + i, q + i, TYPE)                                       \
            if (_mm256_movemask_ps(_mm256_castsi256_ps(above)) && !exceeds)                                 \
                exceeds = AS(NAME##_exceeds)(p + first, q + first, stop - first, worst);                    \
        }                                                                                                   \
        if (whole < n) {                                                                                    \
            uint16_t last_r[16] = {0}, last_c[16] = {0};                                                    \
            __m256i above = _mm256_setzero_si256();                                                         \
            memcpy(last_r, p + whole, (n - whole) * sizeof *last_r);                                        \
            memcpy(last_c, q + whole, (n - whole) * sizeof *last_c);                                        \
            ADD_SIXTEEN(last_r, last_c, TYPE)                                                               \
            counted += 16;                                                                                  \
            if (_mm256_movemask_ps(_mm256_castsi256_ps(above)) && !exceeds)                                 \
                exceeds = AS(NAME##_exceeds)((const u16a *)last_r, (const u16a *)last_c, 16, worst);        \
        }                                                                                                   \
        double sizes = _mm512_reduce_add_pd(a1), squares = _mm512_reduce_add_pd(dd);                        \
        double from_r = _mm512_reduce_add_pd(rr), from_c = _mm512_reduce_add_pd(cc);                        \
        if (!(sizes <= DBL_MAX)) return 0;                                                                  \
        if (from_r && from_c && (from_r < from_c * 0x1p-20 || from_c < from_r * 0x1p-20))                   \
            return AS(USUAL)(reference, candidate, n, pairs, row, all_finite);                              \
        row[0] += squares;                                                                                  \
        row[1] += from_r;                                                                                   \
        pairs->cc += from_c;                                                                                \
        pairs->rc += (from_r - squares + from_c) / 2;                                                       \
        pairs->d1 += _mm512_reduce_add_pd(d1);                                                              \
        pairs->a1 += sizes;                                                                                 \
        pairs->block_max = _mm512_reduce_max_pd(top);                                                       \
        pairs->differing += counted - equal - (negated ? AS(unlike_zeros)(p, q, n) : 0);                    \
        return ADDED | (exceeds ? EXCEEDS : 0);                                                             \
    }
PAIRED_SIXTEEN(pairs_f16_alike, F16, wide_f16, pairs_f16_f16)
PAIRED_SIXTEEN(pairs_bf16_alike, BF16, wide_bf16, pairs_bf16_bf16)
#define ALIKE(WITH_512, USUAL) AS(WITH_512)
#else
#define ALIKE(WITH_512, USUAL) AS(USUAL)
#endif

static const Lanes AS(lanes) = {
    {AS(block_f64), AS(block_f32), AS(block_f16), AS(block_bf16), NULL, NULL, NULL, AS(block_i16), AS(block_i32),
     AS(block_i64), NULL, AS(block_u16), AS(block_u32), AS(block_u64), NULL},
    {AS(doubles_f64), AS(doubles_f32), AS(doubles_f16), AS(doubles_bf16), NULL, NULL, AS(doubles_i8),
     AS(doubles_i16), AS(doubles_i32), AS(doubles_i64), AS(doubles_u8), AS(doubles_u16), AS(doubles_u32),
     AS(doubles_u64), AS(doubles_u8)},
    {{AS(pairs_f64_f64), AS(pairs_f64_f32), AS(pairs_f64_f16), AS(pairs_f64_bf16)},
     {AS(pairs_f32_f64), AS(pairs_f32_f32), AS(pairs_f32_f16), AS(pairs_f32_bf16)},
     {AS(pairs_f16_f64), AS(pairs_f16_f32), ALIKE(pairs_f16_alike, pairs_f16_f16), AS(pairs_f16_bf16)},
     {AS(pairs_bf16_f64), AS(pairs_bf16_f32), AS(pairs_bf16_f16), ALIKE(pairs_bf16_alike, pairs_bf16_bf16)}},
    AS(relative),
};

#undef WIDTH
#undef PARTS
#undef DV
#undef LV
#undef FOUR
#undef VECTOR
#undef WIDE
#undef ADD_FOUR
#undef MOMENTS
#undef FLOATS
#undef INTEGERS
#undef DOUBLES
#undef ADD_PAIRS
#undef PAIRED
#undef PAIRED_WITH
#undef ALIKE
