/* What training in bf16 computes beside matrix products, in one pass each where torch takes many; and causal attention in
   fp32. See kernels.py.

   A bf16 is the upper half of a float. Rows are frames, columns features. Sums over rows are cut into parts that do not
   depend on the number of threads, so that results do not. */

#ifdef __AVX512F__
#include <immintrin.h>
#endif
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint16_t bf16;
typedef long long count;

#define BLOCK 512
#define PART 256

static inline float up(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline bf16 down(float value) { /* to the nearest, ties to even; NaN stays NaN */
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40;
    return (bf16)((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

static inline void narrow(count n, const float *restrict values, bf16 *restrict out) {
    count i = 0;
#ifdef __AVX512BF16__
    for (; i + 16 <= n; i += 16) _mm256_storeu_si256((__m256i *)(out + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(values + i)));
#endif
    for (; i < n; i++) out[i] = down(values[i]);
}

static inline float exponential(float x) { /* of -87 to 87, to 2e-7 */
    float turns = x * 1.44269504f;
    float whole = rintf(turns);
    float f = turns - whole;
    float value = 1.535336188e-4f;
    value = value * f + 1.339887440e-3f;
    value = value * f + 9.618437357e-3f;
    value = value * f + 5.550332548e-2f;
    value = value * f + 2.402264791e-1f;
    value = value * f + 6.931472028e-1f;
    value = value * f + 1.0f;
    uint32_t bits = (uint32_t)((int32_t)whole + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return value * power;
}

static inline uint64_t drawn(uint64_t seed, count number) { /* SplitMix64 (Steele et al. 2014) */
    uint64_t z = seed + (uint64_t)(number + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* GELUs of so many values, by their tanh form, and their derivatives; 0 with a probability of `zeros` / 65,536. */
static inline __attribute__((always_inline)) void gelus(count size, const bf16 *restrict x, uint64_t seed, count draw, int zeros, float *restrict value,
                                                        float *restrict slope) { /* NULL: no derivatives */
    for (count i = 0; i < size; i++) {
        float a = up(x[i]), square = a * a;
        float v = a * (1.5957691216f + 0.0713548162726f * square);
        v = v > 87.0f ? 87.0f : v;
        v = v < -87.0f ? -87.0f : v;
        float power = exponential(-v), s = 1.0f / (1.0f + power);
        value[i] = a * s;
        if (slope) slope[i] = s + s * s * power * a * (1.5957691216f + 0.2140644488178f * square);
    }
    if (zeros) {
        uint64_t draws[BLOCK / 4];
        uint16_t numbers[BLOCK];
        for (count i = 0; i < BLOCK / 4; i++) draws[i] = drawn(seed, draw + i);
        memcpy(numbers, draws, sizeof(numbers));
        for (count i = 0; i < size; i++) {
            value[i] = numbers[i] >= zeros ? value[i] : 0.0f;
            if (slope) slope[i] = numbers[i] >= zeros ? slope[i] : 0.0f;
        }
    }
}

/* GELUs of rows of x, with zeros as `seed` draws them. */
void gelu(count rows, count columns, const bf16 *restrict x, uint64_t seed, int zeros, bf16 *restrict activated, int threads) {
    count blocks = (columns + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (count b = 0; b < rows * blocks; b++) {
        count from = b % blocks * BLOCK, place = b / blocks * columns + from;
        float value[BLOCK];
        count size = columns - from < BLOCK ? columns - from : BLOCK;
        gelus(size, x + place, seed, b * (BLOCK / 4), zeros, value, NULL);
        narrow(size, value, activated + place);
    }
}

/* The same again, and gradient *= their derivatives, whose sums are in parts (rows / PART, columns). */
void gelu_backward(count rows, count columns, const bf16 *restrict x, uint64_t seed, int zeros, bf16 *restrict activated,
                   bf16 *restrict gradient, float *restrict parts, int threads) {
    count blocks = (columns + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (count part = 0; part < (rows + PART - 1) / PART; part++) {
        float *restrict sums = parts + part * columns;
        memset(sums, 0, columns * sizeof(float));
        for (count r = part * PART; r < rows && r < (part + 1) * PART; r++)
            for (count b = 0; b < blocks; b++) {
                count from = b * BLOCK, place = r * columns + from, size = columns - from < BLOCK ? columns - from : BLOCK;
                float value[BLOCK], slope[BLOCK];
                gelus(size, x + place, seed, (r * blocks + b) * (BLOCK / 4), zeros, value, slope);
                narrow(size, value, activated + place);
                for (count i = 0; i < size; i++) {
                    slope[i] *= up(gradient[place + i]);
                    sums[from + i] += slope[i];
                }
                narrow(size, slope, gradient + place);
            }
    }
}

/* Hyperbolic tangents. */
void tanhs(count n, const bf16 *restrict x, bf16 *restrict out, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (count from = 0; from < n; from += BLOCK) {
        float value[BLOCK];
        count size = n - from < BLOCK ? n - from : BLOCK;
        for (count i = 0; i < size; i++) {
            float a = up(x[from + i]), square = a * a, v = 2.0f * fabsf(a);
            v = v > 87.0f ? 87.0f : v;
            float large = copysignf(1.0f - 2.0f / (1.0f + exponential(v)), a);
            value[i] = square < 0.01f ? a * (1.0f - square * (1.0f / 3.0f - square * (2.0f / 15.0f))) : large;
        }
        narrow(size, value, out + from);
    }
}

/* A float gradient as bf16, and its sums over rows. */
void narrowed(count rows, count columns, const float *restrict gradient, bf16 *restrict narrow, float *restrict sums, int threads) {
    count blocks = (columns + BLOCK / 4 - 1) / (BLOCK / 4);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (count b = 0; b < blocks; b++) {
        count from = b * (BLOCK / 4), size = columns - from < BLOCK / 4 ? columns - from : BLOCK / 4;
        float total[BLOCK / 4] = {0};
        for (count r = 0; r < rows; r++) {
            const float *restrict g = gradient + r * columns + from;
            bf16 *restrict out = narrow + r * columns + from;
            for (count i = 0; i < size; i++) {
                out[i] = down(g[i]);
                total[i] += g[i];
            }
        }
        memcpy(sums + from, total, size * sizeof(float));
    }
}

/* out = before + change, the latter only in rows that are `real`, if that is given. */
void added(count rows, count columns, const float *restrict before, const bf16 *restrict change, const uint8_t *restrict real,
           float *restrict out, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (count r = 0; r < rows; r++) {
        const float *restrict b = before + r * columns;
        const bf16 *restrict c = change + r * columns;
        float *restrict o = out + r * columns;
        if (real && !real[r]) memcpy(o, b, columns * sizeof(float));
        else
            for (count i = 0; i < columns; i++) o[i] = b[i] + up(c[i]);
    }
}

/* Gradients of taps (taps, columns) with which each column of items (frames, columns) was convolved alone, and of biases,
   in parts (items, taps + 1, columns). */
void depthwise_backward(count items, count frames, count columns, count taps, count past, const bf16 *restrict gradient,
                        const bf16 *restrict x, float *restrict parts, int threads) {
#pragma omp parallel num_threads(threads)
    {
        float *restrict row = malloc(columns * sizeof(float));
#pragma omp for schedule(static)
        for (count item = 0; item < items; item++) {
            float *restrict sums = parts + item * (taps + 1) * columns, *of_bias = sums + taps * columns;
            memset(sums, 0, (taps + 1) * columns * sizeof(float));
            for (count frame = 0; frame < frames; frame++) {
                const bf16 *restrict g = gradient + (item * frames + frame) * columns;
                for (count i = 0; i < columns; i++) of_bias[i] += row[i] = up(g[i]);
                for (count k = 0; k < taps; k++) {
                    count other = frame + k - past;
                    if (other < 0 || other >= frames) continue;
                    const bf16 *restrict from = x + (item * frames + other) * columns;
                    float *restrict tap = sums + k * columns;
                    for (count i = 0; i < columns; i++) tap[i] += row[i] * up(from[i]);
                }
            }
        }
        free(row);
    }
}

static inline void widened(const void *restrict x, int wide, count from, count n, float *restrict row) {
    if (wide) memcpy(row, (const float *)x + from, n * sizeof(float));
    else
        for (count i = 0; i < n; i++) row[i] = up(((const bf16 *)x)[from + i]);
}

/* Rows of floats (`wide`) or bf16, less their means, over their deviations, times weights, plus biases; and what
   `normed_backward` needs of them. */
void normed(count rows, count columns, const void *restrict x, int wide, const float *restrict weight, const float *restrict bias,
            double least, bf16 *restrict out, float *restrict means, float *restrict factors, int threads) {
#pragma omp parallel num_threads(threads)
    {
        float *restrict row = malloc(columns * sizeof(float));
#pragma omp for schedule(static)
        for (count r = 0; r < rows; r++) {
            widened(x, wide, r * columns, columns, row);
            float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
            for (count i = 0; i < columns; i++) sum += row[i];
            float mean = sum / columns;
#pragma omp simd reduction(+ : squares)
            for (count i = 0; i < columns; i++) squares += (row[i] - mean) * (row[i] - mean);
            float factor = 1.0f / sqrtf(squares / columns + (float)least);
            for (count i = 0; i < columns; i++) row[i] = (row[i] - mean) * factor * weight[i] + bias[i];
            narrow(columns, row, out + r * columns);
            means[r] = mean;
            factors[r] = factor;
        }
        free(row);
    }
}

/* The gradient of x plus `other`, where that is given, both in the format of x; and gradients of weights and biases, in
   parts (rows / PART, 2, columns). */
void normed_backward(count rows, count columns, const bf16 *restrict gradient, const void *restrict x, int wide,
                     const float *restrict weight, const float *restrict means, const float *restrict factors,
                     const void *restrict other, void *restrict of_x, float *restrict parts, int threads) {
#pragma omp parallel num_threads(threads)
    {
        float *restrict row = malloc(3 * columns * sizeof(float)), *restrict scaled = row + columns, *restrict more = row + 2 * columns;
#pragma omp for schedule(static)
        for (count part = 0; part < (rows + PART - 1) / PART; part++) {
            float *restrict of_weight = parts + 2 * part * columns, *restrict of_bias = of_weight + columns;
            memset(of_weight, 0, 2 * columns * sizeof(float));
            for (count r = part * PART; r < rows && r < (part + 1) * PART; r++) {
                const bf16 *restrict g = gradient + r * columns;
                float mean = means[r], factor = factors[r], sum = 0, along = 0;
                widened(x, wide, r * columns, columns, row);
#pragma omp simd reduction(+ : sum, along)
                for (count i = 0; i < columns; i++) {
                    float one = up(g[i]), normal = (row[i] - mean) * factor;
                    of_bias[i] += one;
                    of_weight[i] += one * normal;
                    row[i] = normal;
                    scaled[i] = one * weight[i];
                    sum += scaled[i];
                    along += scaled[i] * normal;
                }
                sum /= columns;
                along /= columns;
                for (count i = 0; i < columns; i++) row[i] = factor * (scaled[i] - sum - row[i] * along);
                if (other) {
                    widened(other, wide, r * columns, columns, more);
                    for (count i = 0; i < columns; i++) row[i] += more[i];
                }
                if (wide) memcpy((float *)of_x + r * columns, row, columns * sizeof(float));
                else narrow(columns, row, (bf16 *)of_x + r * columns);
            }
        }
        free(row);
    }
}

/* Queries, keys and values (3, items, heads, frames, size) of packed ones (items, frames, 3, heads, size), or back:
   queries times `scale`, each pair of the halves of queries and keys turned by the angle of its frame, if there are any. */
void heads(count items, count frames, count heads, count size, bf16 *restrict packed, const float *restrict cosines,
           const float *restrict sines, double scale, bf16 *restrict apart, int back, int threads) {
    count half = size / 2;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (count item = 0; item < items; item++)
        for (count part = 0; part < 3; part++)
            for (count head = 0; head < heads; head++)
                for (count frame = 0; frame < frames; frame++) {
                    bf16 *one = packed + (((item * frames + frame) * 3 + part) * heads + head) * size;
                    bf16 *other = apart + (((part * items + item) * heads + head) * frames + frame) * size;
                    const bf16 *restrict from = back ? other : one;
                    bf16 *restrict to = back ? one : other;
                    float factor = part ? 1.0f : (float)scale;
                    if (part == 2) memcpy(to, from, size * sizeof(bf16));
                    else if (!cosines)
                        for (count i = 0; i < size; i++) to[i] = down(factor * up(from[i]));
                    else
                        for (count i = 0; i < half; i++) {
                            float cosine = factor * cosines[frame * half + i], sine = factor * sines[frame * half + i];
                            float first = up(from[i]), second = up(from[half + i]);
                            sine = back ? -sine : sine;
                            to[i] = down(first * cosine - second * sine);
                            to[half + i] = down(first * sine + second * cosine);
                        }
                }
}

/* Scores become powers of e, the largest 1; returns that largest score, and the sum of the powers in `total`. */
static inline float exponentials(count n, float *restrict scores, float *total) {
    float most = -3e38f, sum = 0;
#pragma omp simd reduction(max : most)
    for (count c = 0; c < n; c++) most = scores[c] > most ? scores[c] : most;
#pragma omp simd reduction(+ : sum)
    for (count c = 0; c < n; c++) {
        float below = scores[c] - most;
        scores[c] = below < -87.0f ? 0.0f : exponential(below);
        sum += scores[c];
    }
    *total = sum;
    return most;
}

/* Softmax of scores (items, heads, frames, columns) in place, of those that are `allowed` (items, frames, columns), with
   steps from an item or a frame to the next; of all in rows where none is. */
void softmax(count items, count heads, count frames, count columns, bf16 *restrict scores, const uint8_t *restrict allowed,
             count item_step, count frame_step, int threads) {
#pragma omp parallel num_threads(threads)
    {
        float *restrict row = malloc(columns * sizeof(float));
#pragma omp for schedule(static)
        for (count r = 0; r < items * heads * frames; r++) {
            bf16 *restrict score = scores + r * columns;
            float sum;
            for (count i = 0; i < columns; i++) row[i] = up(score[i]);
            if (allowed) {
                const uint8_t *restrict one = allowed + r / (heads * frames) * item_step + r % frames * frame_step;
                for (count i = 0; i < columns; i++) row[i] = one[i] ? row[i] : -3e38f;
            }
            exponentials(columns, row, &sum);
            for (count i = 0; i < columns; i++) row[i] /= sum;
            narrow(columns, row, score);
        }
        free(row);
    }
}

/* Leaky ReLUs of rows, each with zeros before and after. */
void leaky(count rows, count columns, const bf16 *restrict x, double slope, bf16 *restrict padded, count before, count after, int threads) {
    count step = before + columns + after;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (count r = 0; r < rows; r++) {
        const bf16 *restrict from = x + r * columns;
        bf16 *restrict to = padded + r * step + before;
        memset(to - before, 0, before * sizeof(bf16));
        memset(to + columns, 0, after * sizeof(bf16));
        for (count i = 0; i < columns; i++) to[i] = (from[i] & 0x8000) ? down(up(from[i]) * (float)slope) : from[i];
    }
}

/* Rows of two channels of floats (rows, 2, columns) in pairs, with zeros before and after. */
void paired(count rows, count columns, const float *restrict x, bf16 *restrict padded, count before, count after, int threads) {
    count step = before + columns + after;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (count r = 0; r < rows; r++) {
        const float *restrict one = x + 2 * r * columns, *restrict other = one + columns;
        uint32_t *restrict to = (uint32_t *)padded + r * step + before;
        memset(to - before, 0, before * sizeof(uint32_t));
        memset(to + columns, 0, after * sizeof(uint32_t));
        for (count i = 0; i < columns; i++) to[i] = down(one[i]) | (uint32_t)down(other[i]) << 16;
    }
}

/* Back, of rows of pairs `step` apart. */
void unpaired(count rows, count columns, const bf16 *restrict pairs, count step, float *restrict out, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (count r = 0; r < rows; r++) {
        const bf16 *restrict from = pairs + r * step;
        float *restrict one = out + 2 * r * columns, *restrict other = one + columns;
        for (count i = 0; i < columns; i++) {
            one[i] = up(from[2 * i]);
            other[i] = up(from[2 * i + 1]);
        }
    }
}

/* The gradient of leaky ReLUs with these results from one or two (or NULL), in rows with steps from each to the next. */
void leaky_backward(count rows, count columns, const bf16 *one, count one_step, const bf16 *other, count other_step,
                    const bf16 *results, count step, double slope, bf16 *restrict of_x, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (count r = 0; r < rows; r++) {
        const bf16 *restrict a = one + r * one_step, *restrict b = other + r * other_step, *restrict result = results + r * step;
        bf16 *restrict out = of_x + r * columns;
        if (other)
            for (count i = 0; i < columns; i++) out[i] = down((up(a[i]) + up(b[i])) * (up(result[i]) > 0 ? 1.0f : (float)slope));
        else
            for (count i = 0; i < columns; i++) out[i] = down(up(a[i]) * (up(result[i]) > 0 ? 1.0f : (float)slope));
    }
}

/* Signs of differences of rows, and the sums of their sizes for each item. */
void differences(count items, count rows, count columns, const bf16 *one, count one_step, const bf16 *other, count other_step,
                 int8_t *restrict signs, float *restrict sums, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (count item = 0; item < items; item++) {
        double total = 0;
        for (count r = item * rows; r < (item + 1) * rows; r++) {
            const bf16 *restrict a = one + r * one_step, *restrict b = other + r * other_step;
            int8_t *restrict sign = signs + r * columns;
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (count i = 0; i < columns; i++) {
                float difference = up(a[i]) - up(b[i]);
                sum += fabsf(difference);
                sign[i] = (difference > 0) - (difference < 0);
            }
            total += sum;
        }
        sums[item] = (float)total;
    }
}

/* Signs times `size`. */
void signed_sizes(count n, const int8_t *restrict signs, double size, bf16 *restrict out, int threads) {
    bf16 plus = down((float)size);
#pragma omp parallel for simd num_threads(threads) schedule(static)
    for (count i = 0; i < n; i++) out[i] = signs[i] > 0 ? plus : signs[i] < 0 ? plus ^ 0x8000 : 0;
}

/* ---------------------------------------------- Convolutions over frames and bands, on processors with products of bf16 */

#ifdef __AVX512BF16__
#define TILE 10

/* sums (TILE, blocks of 16 columns) += n products of pairs: those of rows `row` apart, with steps from a pair to the next,
   and of columns (n, width / 2, 2). */
static inline __attribute__((always_inline)) void multiply(const int blocks, count n, const bf16 *x, count row, count step,
                                                           const bf16 *y, count width, __m512 sums[TILE][2]) {
    const bf16 *rows[TILE];
    for (int r = 0; r < TILE; r++) rows[r] = x + r * row;
    for (count i = 0, at = 0; i < n; i++, at += step, y += width) {
        __m512bh columns[2];
#pragma GCC unroll 2
        for (int block = 0; block < blocks; block++) columns[block] = (__m512bh)_mm512_loadu_si512(y + 32 * block);
#pragma GCC unroll 10
        for (int r = 0; r < TILE; r++) {
            int32_t pair;
            memcpy(&pair, rows[r] + at, 4);
            __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 2
            for (int block = 0; block < blocks; block++) sums[r][block] = _mm512_dpbf16_ps(sums[r][block], both, columns[block]);
        }
    }
}

/* Where a convolution of padded bands (frames, columns) reads and writes. A band is a pair or more of channels. */
typedef struct {
    count frames, columns, channels;      /* of the input; columns: channels of all bands */
    count taps, window, stride, step;     /* of the kernel: frames, bands; steps along both */
    count out_frames, bands, outputs;     /* of the output; outputs: channels */
} shape;

/* Weights (outputs, channels, taps, window) as pairs of columns (taps, window * channels / 2, outputs, 2). */
static void laid_out(const shape *s, const float *restrict weight, bf16 *restrict out) {
    for (count o = 0; o < s->outputs; o++)
        for (count c = 0; c < s->channels; c++)
            for (count i = 0; i < s->taps; i++)
                for (count j = 0; j < s->window; j++) {
                    count e = (i * s->window + j) * s->channels + c;
                    out[(e / 2 * s->outputs + o) * 2 + e % 2] = down(*weight++);
                }
}

static inline __attribute__((always_inline)) void convolved_tile(const int blocks, const shape *s, const bf16 *restrict item, count t, count k,
                                                                 const bf16 *restrict laid, const float *restrict bias, float slope, bf16 *restrict out) {
    __m512 sums[TILE][2];
#pragma GCC unroll 10
    for (int r = 0; r < TILE; r++)
#pragma GCC unroll 2
        for (int block = 0; block < blocks; block++) sums[r][block] = _mm512_loadu_ps(bias + 16 * block);
    count pairs = s->window * s->channels / 2, step = s->step * s->channels;
    for (count i = 0; i < s->taps; i++) {
        count from = t * s->stride + i - s->taps / 2;
        if (from < 0 || from >= s->frames) continue;
        multiply(blocks, pairs, item + from * s->columns + k * step, step, 2, laid + i * pairs * s->outputs * 2, s->outputs * 2, sums);
    }
#pragma GCC unroll 10
    for (int r = 0; r < TILE; r++)
#pragma GCC unroll 2
        for (int block = 0; block < blocks; block++) {
            __m512 one = sums[r][block], low = _mm512_mul_ps(one, _mm512_set1_ps(slope));
            one = _mm512_mask_blend_ps(_mm512_cmp_ps_mask(one, _mm512_setzero_ps(), _CMP_LT_OQ), one, low);
            _mm256_storeu_si256((__m256i *)(out + r * s->outputs + 16 * block), (__m256i)_mm512_cvtneps_pbh(one));
        }
}

/* Leaky ReLUs of a convolution, in rows with zeros before and after the bands. */
void convolve(count items, const shape *s, const bf16 *restrict x, const float *restrict weight, const float *restrict bias, double slope,
              bf16 *restrict padded, count before, count after, int threads) {
    count size = s->taps * s->window * s->channels * s->outputs, width = s->bands * s->outputs;
    bf16 *laid = malloc(size * sizeof(bf16));
    laid_out(s, weight, laid);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (count row = 0; row < items * s->out_frames; row++) {
        const bf16 *item = x + row / s->out_frames * s->frames * s->columns;
        bf16 *out = padded + row * (before + width + after) + before;
        memset(out - before, 0, before * sizeof(bf16));
        memset(out + width, 0, after * sizeof(bf16));
        for (count tile = 0; tile < s->bands; tile += TILE) {
            count k = tile + TILE <= s->bands ? tile : s->bands - TILE; /* the last one again */
            for (count o = 0; o < s->outputs; o += 32) {
                const bf16 *columns = laid + 2 * o;
                bf16 *to = out + k * s->outputs + o;
                if (s->outputs - o >= 32) convolved_tile(2, s, item, row % s->out_frames, k, columns, bias + o, (float)slope, to);
                else convolved_tile(1, s, item, row % s->out_frames, k, columns, bias + o, (float)slope, to);
            }
        }
    }
    free(laid);
}

/* Gradients of bands by which `groups` of `each` steps, the first of which begins at `origin`, are computed in pairs with
   `shifts` bands of the output from `first` on. */
typedef struct {
    count each, origin, groups, lanes, shifts, first, padded;
} grouping;

static grouping grouped(const shape *s, count before, count bands) {
    grouping g;
    count width = s->step * s->channels;
    g.each = width < 16 ? 16 / width : 1;
    g.origin = before - before % s->step;
    g.groups = (before - g.origin + bands + g.each * s->step - 1) / (g.each * s->step);
    g.lanes = (g.each * width + 15) / 16 * 16;
    g.first = -((s->window - 1 - g.origin) / s->step);
    g.shifts = (g.origin + g.each * s->step - 1) / s->step - g.first + 1;
    count last = g.first + (g.groups - 1) * g.each + g.shifts - 1;
    g.padded = (last >= s->bands ? last + 1 : s->bands) - g.first;
    return g;
}

/* Weights as pairs of columns (taps, shifts * outputs / 2, lanes, 2). */
static void turned(const shape *s, const grouping *g, const float *restrict weight, bf16 *restrict out) {
    memset(out, 0, s->taps * g->shifts * s->outputs * g->lanes * sizeof(bf16));
    for (count i = 0; i < s->taps; i++)
        for (count shift = 0; shift < g->shifts; shift++)
            for (count band = 0; band < g->each * s->step; band++) {
                count j = g->origin + band - s->step * (g->first + shift);
                if (j < 0 || j >= s->window) continue;
                for (count o = 0; o < s->outputs; o++)
                    for (count c = 0; c < s->channels; c++) {
                        count e = (i * g->shifts + shift) * s->outputs + o;
                        out[(e / 2 * g->lanes + band * s->channels + c) * 2 + e % 2] =
                            down(weight[((o * s->channels + c) * s->taps + i) * s->window + j]);
                    }
            }
}

/* The first of the bands of the output that a lane is computed from: weights for those before it are 0. */
static count first_shift(const shape *s, const grouping *g, count lane) {
    count left = g->origin + lane / s->channels + 1 - s->window;
    count first = (left > 0 ? (left + s->step - 1) / s->step : -(-left / s->step)) - g->first;
    return first < g->shifts ? first : g->shifts;
}

static inline __attribute__((always_inline)) void of_input_tile(const int blocks, const shape *s, const grouping *g, const bf16 *restrict gradient,
                                                                count t, count group, count lane, const bf16 *restrict laid, bf16 *restrict out) {
    __m512 sums[TILE][2];
#pragma GCC unroll 10
    for (int r = 0; r < TILE; r++)
#pragma GCC unroll 2
        for (int block = 0; block < blocks; block++) sums[r][block] = _mm512_setzero_ps();
    count half = s->outputs / 2, pairs = g->shifts * half, step = g->each * s->outputs;
    count first = first_shift(s, g, lane) * half, both = blocks == 2 ? first_shift(s, g, lane + 16) * half : pairs;
    for (count i = 0; i < s->taps; i++) {
        count place = t + s->taps / 2 - i, from = place / s->stride;
        if (place < 0 || place % s->stride || from >= s->out_frames) continue;
        const bf16 *x = gradient + from * g->padded * s->outputs + group * step, *y = laid + (i * pairs * g->lanes + lane) * 2;
        if (both > first) multiply(1, both - first, x + 2 * first, step, 2, y + 2 * first * g->lanes, 2 * g->lanes, sums);
        if (blocks == 2) multiply(2, pairs - both, x + 2 * both, step, 2, y + 2 * both * g->lanes, 2 * g->lanes, sums);
    }
#pragma GCC unroll 10
    for (int r = 0; r < TILE; r++)
#pragma GCC unroll 2
        for (int block = 0; block < blocks; block++)
            _mm256_storeu_si256((__m256i *)(out + r * g->lanes + 16 * block), (__m256i)_mm512_cvtneps_pbh(sums[r][block]));
}

static inline __m512 widen(const bf16 *x) { return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x)), 16); }

/* The gradient of an output of leaky ReLUs with these results, between zeros; its sums are added to `sums`. */
static void of_output(const shape *s, const grouping *g, const bf16 *one, count one_step, const bf16 *other, count other_step,
                      const bf16 *results, count step, float slope, bf16 *restrict gradient, float *restrict sums) {
    count width = s->bands * s->outputs, end = (g->padded + g->first - s->bands) * s->outputs;
    __m512 whole = _mm512_set1_ps(1.0f), less = _mm512_set1_ps(slope);
    for (count t = 0; t < s->out_frames; t++) {
        bf16 *restrict out = gradient + (t * g->padded - g->first) * s->outputs;
        memset(out + g->first * s->outputs, 0, -g->first * s->outputs * sizeof(bf16));
        memset(out + width, 0, end * sizeof(bf16));
        for (count o = 0; o < s->outputs; o += 16) {
            __m512 sum = _mm512_loadu_ps(sums + o);
            for (count i = o; i < width; i += s->outputs) {
                __m512 given = widen(one + t * one_step + i), result = widen(results + t * step + i);
                if (other) given = _mm512_add_ps(given, widen(other + t * other_step + i));
                given = _mm512_mul_ps(given, _mm512_mask_blend_ps(_mm512_cmp_ps_mask(result, _mm512_setzero_ps(), _CMP_GT_OQ), less, whole));
                _mm256_storeu_si256((__m256i *)(out + i), (__m256i)_mm512_cvtneps_pbh(given));
                sum = _mm512_add_ps(sum, given);
            }
            _mm512_storeu_ps(sums + o, sum);
        }
    }
}

static void of_input(const shape *s, const grouping *g, count end, const bf16 *restrict gradient, const bf16 *restrict laid, bf16 *restrict of_x) {
    bf16 *restrict made = malloc(g->groups * g->lanes * sizeof(bf16));
    count width = g->each * s->step * s->channels;
    for (count t = 0; t < s->frames; t++) {
        memset(of_x + t * s->columns, 0, g->origin * s->channels * sizeof(bf16));
        memset(of_x + t * s->columns + end, 0, (s->columns - end) * sizeof(bf16));
        for (count tile = 0; tile < g->groups; tile += TILE) {
            count group = tile + TILE <= g->groups ? tile : g->groups - TILE;
            for (count lane = 0; lane < g->lanes; lane += 32) {
                bf16 *to = made + group * g->lanes + lane;
                if (g->lanes - lane >= 32) of_input_tile(2, s, g, gradient, t, group, lane, laid, to);
                else of_input_tile(1, s, g, gradient, t, group, lane, laid, to);
            }
        }
        for (count group = 0; group < g->groups; group++) {
            count place = g->origin * s->channels + group * width, left = end - place;
            memcpy(of_x + t * s->columns + place, made + group * g->lanes, (left < width ? left : width) * sizeof(bf16));
        }
    }
    free(made);
}

static inline __attribute__((always_inline)) void of_weight_tile(const int blocks, const shape *s, const bf16 *restrict x, const bf16 *restrict gradient,
                                                                 float *restrict out) {
    __m512 sums[TILE][2];
#pragma GCC unroll 10
    for (int r = 0; r < TILE; r++)
#pragma GCC unroll 2
        for (int block = 0; block < blocks; block++) sums[r][block] = _mm512_setzero_ps();
    for (count t = 0; t < s->out_frames; t += 2)
        multiply(blocks, s->bands, x + 2 * t * s->stride * s->columns, 2, 2 * s->step * s->channels,
                 gradient + t * s->bands * s->outputs, 2 * s->outputs, sums);
#pragma GCC unroll 10
    for (int r = 0; r < TILE; r++)
#pragma GCC unroll 2
        for (int block = 0; block < blocks; block++) _mm512_storeu_ps(out + r * s->outputs + 16 * block, sums[r][block]);
}

static void in_pairs(count n, const bf16 *restrict one, const bf16 *restrict other, uint32_t *restrict out) { /* NULL: zeros */
    if (one && other)
        for (count i = 0; i < n; i++) out[i] = one[i] | (uint32_t)other[i] << 16;
    else
        for (count i = 0; i < n; i++) out[i] = one ? one[i] : other ? (uint32_t)other[i] << 16 : 0;
}

/* Gradients of weights (taps, window * channels, outputs), as products of pairs of frames. */
static void of_weight(const shape *s, const grouping *g, const bf16 *restrict x, const bf16 *restrict gradient, float *restrict out) {
    count even = (s->out_frames + 1) / 2 * 2, frames = (even - 2) * s->stride + s->taps, width = s->bands * s->outputs;
    bf16 *xs = malloc(frames * s->columns * 2 * sizeof(bf16)), *gradients = malloc(even * width * sizeof(bf16));
    for (count t = 0; t < frames; t++) {
        count from = t - s->taps / 2, other = from + s->stride;
        in_pairs(s->columns, from >= 0 && from < s->frames ? x + from * s->columns : NULL,
                 other >= 0 && other < s->frames ? x + other * s->columns : NULL, (uint32_t *)xs + t * s->columns);
    }
    for (count t = 0; t < even; t += 2) {
        const bf16 *one = gradient + (t * g->padded - g->first) * s->outputs;
        in_pairs(width, one, t + 1 < s->out_frames ? one + g->padded * s->outputs : NULL, (uint32_t *)gradients + t / 2 * width);
    }
    count window = s->window * s->channels;
    for (count i = 0; i < s->taps; i++)
        for (count tile = 0; tile < window; tile += TILE) {
            count e = tile + TILE <= window ? tile : window - TILE;
            for (count o = 0; o < s->outputs; o += 32) {
                const bf16 *from = xs + (i * s->columns + e) * 2;
                float *to = out + (i * window + e) * s->outputs + o;
                if (s->outputs - o >= 32) of_weight_tile(2, s, from, gradients + 2 * o, to);
                else of_weight_tile(1, s, from, gradients + 2 * o, to);
            }
        }
    free(xs);
    free(gradients);
}

/* Gradients of results of a convolution of x, in rows with steps between them: `one`, plus `other` unless it is NULL. */
typedef struct {
    const bf16 *one, *other, *results, *x;
    count one_step, other_step, step;
} judged;

/* Gradients of `n` times `convolve`: of x, summed up over them, and of weights and biases in parts (n, items,
   taps * window * channels + 1, outputs); where NULL is given, that one is not computed. */
void convolve_backward(count items, const shape *s, count before, count bands, count n, const judged *all, double slope, const float *weight,
                       bf16 *of_x, float *parts, int threads) {
    grouping g = grouped(s, before, bands);
    bf16 *laid = of_x ? malloc(s->taps * g.shifts * s->outputs * g.lanes * sizeof(bf16)) : NULL;
    if (of_x) turned(s, &g, weight, laid);
    count weights = s->taps * s->window * s->channels * s->outputs, size = s->out_frames * g.padded * s->outputs;
#pragma omp parallel num_threads(threads)
    {
        bf16 *gradient = malloc(2 * size * sizeof(bf16));
        float *unused = malloc(s->outputs * sizeof(float)), row[BLOCK];
#pragma omp for schedule(static)
        for (count item = 0; item < items; item++) {
            count at = item * s->out_frames;
            for (count i = 0; i < n; i++) {
                const judged *j = all + i;
                const bf16 *other = j->other ? j->other + at * j->other_step : NULL;
                float *part = parts ? parts + (i * items + item) * (weights + s->outputs) : NULL, *sums = part ? part + weights : unused;
                bf16 *own = gradient + (i ? size : 0);
                memset(sums, 0, s->outputs * sizeof(float));
                of_output(s, &g, j->one + at * j->one_step, j->one_step, other, j->other_step, j->results + at * j->step, j->step, (float)slope, own, sums);
                if (part) of_weight(s, &g, j->x + item * s->frames * s->columns, own, part);
                for (count from = 0; i && of_x && from < size; from += BLOCK) {
                    count some = size - from < BLOCK ? size - from : BLOCK;
                    for (count e = 0; e < some; e++) row[e] = up(gradient[from + e]) + up(own[from + e]);
                    narrow(some, row, gradient + from);
                }
            }
            if (of_x) of_input(s, &g, (before + bands) * s->channels, gradient, laid, of_x + item * s->frames * s->columns);
        }
        free(unused);
        free(gradient);
    }
    free(laid);
}
#endif

#ifdef __AVX512F__
#define SIDE 64 /* queries and keys of a block */
#define ROWS 4  /* that are multiplied at once */

/* Sequences one behind the other, from `starts` on, the last of which is the end of all. Heads are multiples of 16 wide. */
typedef struct {
    count heads, groups, size, sequences;
    const count *starts;
    const float *query, *key, *value; /* (rows, heads, size), and of groups of heads (rows, groups, size) */
    const float *cosines, *sines;     /* (rows, size), of which the second half repeats the first */
    double scale;
} attention;

static inline __attribute__((always_inline)) void rows_of_product(const int blocks, count depth, const float *x, count row, count step, const float *y,
                                                                  count width, float *out, count out_row, int add) {
    __m512 sums[ROWS][4], columns[4];
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int block = 0; block < blocks; block++)
            sums[r][block] = add ? _mm512_loadu_ps(out + r * out_row + 16 * block) : _mm512_setzero_ps();
    for (count i = 0; i < depth; i++) {
#pragma GCC unroll 4
        for (int block = 0; block < blocks; block++) {
            columns[block] = _mm512_loadu_ps(y + i * width + 16 * block);
            __asm__("" : "+v"(columns[block])); /* else it is loaded again for each row */
        }
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            __m512 one = _mm512_set1_ps(x[r * row + i * step]);
#pragma GCC unroll 4
            for (int block = 0; block < blocks; block++) sums[r][block] = _mm512_fmadd_ps(one, columns[block], sums[r][block]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int block = 0; block < blocks; block++) _mm512_storeu_ps(out + r * out_row + 16 * block, sums[r][block]);
}

/* out (ROWS, columns) = or += x (ROWS, depth), with steps along both, times y (depth, columns), `width` apart. */
static void product(count columns, count depth, const float *x, count row, count step, const float *y, count width, float *out, count out_row, int add) {
    count c = 0;
    for (; c + 64 <= columns; c += 64) rows_of_product(4, depth, x, row, step, y + c, width, out + c, out_row, add);
    for (; c < columns; c += 16) rows_of_product(1, depth, x, row, step, y + c, width, out + c, out_row, add);
}

/* A head times `scale`, the pairs of its halves turned by the angles of its row, or back. */
static void rotate(const attention *a, count row, const float *restrict x, float scale, int back, float *restrict out) {
    count half = a->size / 2;
    const float *restrict cosines = a->cosines + row * a->size, *restrict sines = a->sines + row * a->size;
    float turn = back ? -scale : scale;
    for (count i = 0; i < half; i++) {
        float cosine = scale * cosines[i], sine = turn * sines[i], one = x[i], other = x[half + i];
        out[i] = one * cosine - other * sine;
        out[half + i] = other * cosine + one * sine;
    }
}

/* A head of `rows` rows from `first` on, turned and scaled unless `scale` is 0, and zeros up to SIDE rows. */
static void gather(const attention *a, const float *x, count heads, count head, count first, count rows, float scale, float *out) {
    for (count r = 0; r < rows; r++) {
        const float *from = x + ((first + r) * heads + head) * a->size;
        if (scale) rotate(a, first + r, from, scale, 0, out + r * a->size);
        else memcpy(out + r * a->size, from, a->size * sizeof(float));
    }
    memset(out + rows * a->size, 0, (SIDE - rows) * a->size * sizeof(float));
}

static void across(count size, const float *restrict x, float *restrict out) { /* (SIDE, size) -> (size, SIDE) */
    for (count e = 0; e < size; e++)
        for (count r = 0; r < SIDE; r++) out[e * SIDE + r] = x[r * size + e];
}

/* Scores of `seen` keys, of which the first `n` count, become weights before they are divided by their sum; returns the
   logarithm of that. */
static inline float weigh(count n, count seen, float *restrict scores, float *total) {
    float most = exponentials(n, scores, total);
    for (count c = n; c < seen; c++) scores[c] = 0;
    return most + logf(*total);
}

static void attend_head(const attention *a, count head, count first, count length, const float *keys_across, const float *values, float *out, float *logs) {
    count size = a->size, width = (length + SIDE - 1) / SIDE * SIDE;
    float *q = malloc((2 * size + width) * SIDE * sizeof(float)), *sums = q + SIDE * size, *scores = sums + SIDE * size;
    for (count from = 0; from < length; from += SIDE) {
        count rows = length - from < SIDE ? length - from : SIDE;
        float total[SIDE];
        gather(a, a->query, a->heads, head, first + from, rows, (float)a->scale, q);
        for (count b = 0; b <= from; b += SIDE)
            for (count r = 0; r < rows; r += ROWS)
                product(b < from ? SIDE : (r + ROWS + 15) / 16 * 16, size, q + r * size, size, 1, keys_across + b * size, SIDE, scores + r * width + b, width, 0);
        for (count r = 0; r < rows; r++) logs[(first + from + r) * a->heads + head] = weigh(from + r + 1, from + r / ROWS * ROWS + ROWS, scores + r * width, total + r);
        for (count b = 0; b <= from; b += SIDE)
            for (count r = 0; r < rows; r += ROWS)
                product(size, b < from ? SIDE : r + ROWS, scores + r * width + b, width, 1, values + b * size, size, sums + r * size, size, b > 0);
        for (count r = 0; r < rows; r++)
            for (count e = 0; e < size; e++) out[((first + from + r) * a->heads + head) * size + e] = sums[r * size + e] / total[r];
    }
    free(q);
}

/* Outputs as queries are, and for each head of a row the logarithm of the sum of its weights. */
void attend(const attention *a, float *out, float *logs, int threads) {
    count size = a->size, each = a->heads / a->groups;
#pragma omp parallel for num_threads(threads) schedule(dynamic) collapse(2)
    for (count n = 0; n < a->sequences; n++)
        for (count group = 0; group < a->groups; group++) {
            count first = a->starts[n], length = a->starts[n + 1] - first, padded = (length + SIDE - 1) / SIDE * SIDE;
            float *keys_across = malloc((2 * padded + SIDE) * size * sizeof(float)), *values = keys_across + padded * size, *block = values + padded * size;
            for (count b = 0; b < length; b += SIDE) {
                count rows = length - b < SIDE ? length - b : SIDE;
                gather(a, a->key, a->groups, group, first + b, rows, 1.0f, block);
                across(size, block, keys_across + b * size);
                gather(a, a->value, a->groups, group, first + b, rows, 0.0f, values + b * size);
            }
            for (count head = group * each; head < (group + 1) * each; head++) attend_head(a, head, first, length, keys_across, values, out, logs);
            free(keys_across);
        }
}

/* Scores of ROWS queries, of which the first sees `n` keys and each of the others `more` than the one before it, become
   weights, and gradients of weights those of scores. */
static inline void weights_and_slopes(count n, count more, count seen, float *scores, float *slopes, const float *logs, const float *along) {
    for (count i = 0; i < ROWS; i++) {
        float *restrict weight = scores + i * SIDE, *restrict slope = slopes + i * SIDE, log = logs[i], mean = along[i];
        for (count c = 0; c < n + i * more; c++) {
            float below = weight[c] - log;
            weight[c] = below < -87.0f ? 0.0f : exponential(below);
            slope[c] = weight[c] * (slope[c] - mean);
        }
        for (count c = n + i * more; c < seen; c++) weight[c] = slope[c] = 0;
    }
}

/* Keys, and keys and values across, of a group in a sequence, and their gradients; all (padded length, size). */
typedef struct {
    float *keys, *keys_across, *values_across, *of_keys, *of_values;
} group_gradients;

static void attend_head_backward(const attention *a, count head, count first, count length, const group_gradients *g, const float *out,
                                 const float *logs, const float *gradient, float *of_query) {
    count size = a->size;
    float *q = malloc((3 * size + 2 * SIDE) * SIDE * sizeof(float)), *of_out = q + SIDE * size, *of_q = of_out + SIDE * size;
    float *weights = of_q + SIDE * size, *slopes = weights + SIDE * SIDE;
    for (count from = 0; from < length; from += SIDE) {
        count rows = length - from < SIDE ? length - from : SIDE;
        float along[SIDE] = {0}, log[SIDE] = {0};
        gather(a, a->query, a->heads, head, first + from, rows, (float)a->scale, q);
        gather(a, gradient, a->heads, head, first + from, rows, 0.0f, of_out);
        for (count r = 0; r < rows; r++) {
            count at = (first + from + r) * a->heads + head;
            const float *restrict one = out + at * size, *restrict other = of_out + r * size;
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (count e = 0; e < size; e++) sum += one[e] * other[e];
            along[r] = sum;
            log[r] = logs[at];
        }
        memset(of_q, 0, SIDE * size * sizeof(float));
        for (count b = 0; b <= from; b += SIDE) {
            int last = b == from;
            for (count r = 0; r < rows; r += ROWS) {
                count seen = last ? r + ROWS : SIDE, columns = (seen + 15) / 16 * 16;
                float *own = weights + r * SIDE, *slope = slopes + r * SIDE;
                product(columns, size, q + r * size, size, 1, g->keys_across + b * size, SIDE, own, SIDE, 0);
                product(columns, size, of_out + r * size, size, 1, g->values_across + b * size, SIDE, slope, SIDE, 0);
                weights_and_slopes(last ? r + 1 : SIDE, last, seen, own, slope, log + r, along + r);
                product(size, seen, slope, SIDE, 1, g->keys + b * size, size, of_q + r * size, size, 1);
            }
            for (count k = 0; k < (last ? rows : SIDE); k += ROWS) {
                count r = last ? k : 0; /* those before it do not see it */
                product(size, rows - r, weights + r * SIDE + k, 1, SIDE, of_out + r * size, size, g->of_values + (b + k) * size, size, 1);
                product(size, rows - r, slopes + r * SIDE + k, 1, SIDE, q + r * size, size, g->of_keys + (b + k) * size, size, 1);
            }
        }
        for (count r = 0; r < rows; r++)
            rotate(a, first + from + r, of_q + r * size, (float)a->scale, 1, of_query + ((first + from + r) * a->heads + head) * size);
    }
    free(q);
}

/* Gradients of queries, keys and values from that of the outputs. */
void attend_backward(const attention *a, const float *out, const float *logs, const float *gradient, float *of_query, float *of_key, float *of_value,
                     int threads) {
    count size = a->size, each = a->heads / a->groups;
#pragma omp parallel for num_threads(threads) schedule(dynamic) collapse(2)
    for (count n = 0; n < a->sequences; n++)
        for (count group = 0; group < a->groups; group++) {
            count first = a->starts[n], length = a->starts[n + 1] - first, all = (length + SIDE - 1) / SIDE * SIDE * size;
            float *memory = malloc((5 * all + SIDE * size) * sizeof(float)), *block = memory + 5 * all;
            group_gradients g = {memory, memory + all, memory + 2 * all, memory + 3 * all, memory + 4 * all};
            memset(g.of_keys, 0, 2 * all * sizeof(float));
            for (count b = 0; b < length; b += SIDE) {
                count rows = length - b < SIDE ? length - b : SIDE;
                gather(a, a->key, a->groups, group, first + b, rows, 1.0f, g.keys + b * size);
                across(size, g.keys + b * size, g.keys_across + b * size);
                gather(a, a->value, a->groups, group, first + b, rows, 0.0f, block);
                across(size, block, g.values_across + b * size);
            }
            for (count head = group * each; head < (group + 1) * each; head++) attend_head_backward(a, head, first, length, &g, out, logs, gradient, of_query);
            for (count r = 0; r < length; r++) {
                count at = ((first + r) * a->groups + group) * size;
                rotate(a, first + r, g.of_keys + r * size, 1.0f, 1, of_key + at);
                memcpy(of_value + at, g.of_values + r * size, size * sizeof(float));
            }
            free(memory);
        }
}
#endif
