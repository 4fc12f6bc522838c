// One step of a mirror optimizer in one pass over memory, entry by entry as in `_mirror_map.settle`.
//
// What a group of parameters shares is compiled in:
//   ADAM       Adam's moments, else a momentum
//   N          the exponent 1/(p − 1) where it is whole and small, −1 for 1/2, else 0 or −2: any
//   BF16       weights are bfloat16;  BF16_GRAD: gradients are
//   MIRROR     the mirror variable θ is kept apart from the weight
//   LEAN       θ is not kept, but read off the weight in float64
//   KEEP       what the roundings of θ lose is kept
//   MASK       pruned entries stay 0
//   L1         a soft threshold: 1 of θ, 2 of the weight
//   CHAIN      Adam's moments are those of the gradient with respect to θ
//   MAXIMIZE, MOMENTUM, NESTEROV, NORMALIZE
//   WATCH      0 leaves out the look for edits, to measure what it costs

#include <cmath>
#include <cstdint>
#include <cstring>

#ifndef WATCH
#define WATCH 1
#endif

namespace {

// Powers that are products or roots take no time: the step waits for memory. So every weight is compared with its θ.
constexpr bool QUICK = N > 0 || N == -1;
constexpr int64_t BLOCK = QUICK ? 512 : 1024;  // entries that stay in the first cache between the look and the step
constexpr int CHAINS = 4;                      // of a signature: they do not wait for each other
constexpr int64_t WORDS = 64;                  // bytes that a chain takes at once

struct Row {
    int64_t weight, grad, theta, kept;
#if ADAM
    int64_t avg, avg_sq, step;
#else
    int64_t buffer, norm;
#endif
    int64_t rest, sums, numel;
};

struct Scalars {
    double lr, pull, exponent, l1;
#if ADAM
    double weight1, beta2, weight2, log_beta1, log_beta2, eps;
#else
    double momentum;
#endif
};

template <class To, class From> inline To bits(From x) {
    static_assert(sizeof(To) == sizeof(From));
    To y;
    std::memcpy(&y, &x, sizeof y);
    return y;
}

inline float widen(float x) { return x; }
inline float widen(uint16_t x) { return bits<float>(uint32_t(x) << 16); }

inline uint16_t rounded(float x) {  // to the nearest bfloat16, ties to even
    uint32_t u = bits<uint32_t>(x);
    return x != x ? 0x7fc0 : uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

#if BF16
using Weight = uint16_t;
inline uint16_t stored(float x) { return rounded(x); }
#else
using Weight = float;
inline float stored(float x) { return x; }
#endif
typedef uint32_t Lanes __attribute__((vector_size(WORDS)));
#if LEAN
using Real = double;
#else
using Real = float;
#endif
#if BF16_GRAD
using Grad = uint16_t;
#else
using Grad = float;
#endif

// c + c'x + c''x² + …
template <class T> inline T sum(T, double c) { return T(c); }
template <class T, class... More> inline T sum(T x, double c, More... more) { return std::fma(x, sum(x, more...), T(c)); }

// size^a for size >= 0, as 2^(a·log2(size)) by series, which compilers vectorise: to a/2 roundings of a float32 and, in
// float64, to 1e-10.
template <class T> inline T any_power(T size, double a) {
    const float near = float(size);
    const bool tiny = near < 1.17549435e-38f;
    const uint32_t u = bits<uint32_t>(tiny ? near * 4294967296.0f : near);
    const int32_t k = int32_t(u - 0x3f3504f3u) >> 23;  // near = m·2^k with m from √½ to √2
    const T m = bits<float>(u - (uint32_t(k) << 23));
    const T s = (m - 1) / (m + 1), q = s * s;
    const T log = T(2.8853900817779268) * s * sum(q, 1., 1. / 3, 1. / 5, 1. / 7, 1. / 9, 1. / 11, 1. / 13);
    const T exponent = T(k - (tiny ? 32 : 0)), factor = T(a), high = exponent * factor;
    const T low = std::fma(exponent, factor, -high) + exponent * T(a - factor);  // what high, a large number, has lost
    const T most = std::rint(high), part = (high - most) + (low + factor * log);
    const T more = std::rint(part), f = T(0.69314718055994531) * (part - more);
    T whole = most + more;
    whole = whole < -252 ? -252 : whole > 254 ? 254 : whole;
    T power = sum(f, 1., 1., 1. / 2, 1. / 6, 1. / 24, 1. / 120, 1. / 720, 1. / 5040, 1. / 40320, 1. / 362880);
    const int32_t half = int32_t(whole) >> 1;  // twice, so that what has underflowed is 0
    power = power * bits<float>(uint32_t(half + 127) << 23) * bits<float>(uint32_t(int32_t(whole) - half + 127) << 23);
    if (sizeof(T) > sizeof(float)) power *= 1 + factor * (size - near) / near;
    power = near == INFINITY ? T(INFINITY) : power;
    return near > 0 ? power : size;  // 0 and nan
}

// x^K by squares and cubes.
template <int K, class T> inline T power(T x) {
    if constexpr (K == 0) return 1;
    else if constexpr (K == 1) return x;
    else if constexpr (K == 2) return x * x;
    else if constexpr (K == 3) return x * x * x;
    else if constexpr (K % 3 == 0) return power<3, T>(power<K / 3, T>(x));
    else if constexpr (K % 2 == 0) return power<2, T>(power<K / 2, T>(x));
    else return power<K - 1, T>(x) * x;
}

// sign(x)|x|^a
template <class T> inline T signed_power(T x, double a) {
    if constexpr (N > 0) {
        T slope = power<(N > 0 ? N - 1 : 0), T>(x);
        return (N % 2 ? slope : std::fabs(slope)) * x;
    } else if constexpr (N == -1) {
        return std::copysign(std::sqrt(std::fabs(x)), x);
    } else {
        return std::copysign(any_power(std::fabs(x), a), x);
    }
}

// dw/dθ = a|θ|^(a−1), for a > 1.
template <class T> inline T slope_of_weight(T x, double a) {
    if constexpr (N > 1) return T(a) * std::fabs(power<(N > 1 ? N - 1 : 0), T>(x));
    else return T(a) * any_power(std::fabs(x), a - 1);
}

// θ of a weight.
inline double read_off(double weight, double a) {
    const double size = std::fabs(weight);
    return std::copysign(N == 2 ? std::sqrt(size) : any_power(size, 1 / a), weight);
}

// Whether a weight is the rounding of a number that close to the expected one.
inline bool means(float weight, float expected, float tolerance) {
#if BF16
    float low = widen(rounded(expected * (1 - tolerance))), high = widen(rounded(expected * (1 + tolerance)));
    bool close = weight >= (low < high ? low : high) && weight <= (low < high ? high : low);
#else
    bool close = weight == expected || std::fabs(weight - expected) <= tolerance * std::fabs(expected);
#endif
    return close || (weight != weight && expected != expected);
}

// θ of the weights that others changed.
inline void follow(const Weight *weight, float *theta, float *rest, int64_t size, double a) {
    float tolerance = float((16 + a) * 1.1920929e-7);
    int edited = 0;
    for (int64_t i = 0; i < size; i++)
        edited |= !means(widen(weight[i]), signed_power(theta[i], a), tolerance);
    if (!edited) return;
    for (int64_t i = 0; i < size; i++) {
        float w = widen(weight[i]);
        if (!means(w, signed_power(theta[i], a), tolerance)) {
            theta[i] = float(read_off(w, a));
            if (KEEP) rest[i] = 0;
        }
    }
}

// The same, where it is rare: not a part of the loop, whose registers it would take.
__attribute__((noinline, unused)) void apart(const Weight *weight, float *theta, float *rest, int64_t size, double a) {
    follow(weight, theta, rest, size, a);
}

// The bits of a block, in 16 lanes. A lane adds its words in four chains and rotates a sum by one bit after each: so
// order counts, and the signs of different words are different bits of a sum. A change of one word is never lost, nor
// are two changed signs; others are lost by chance, about 2^-32 in each lane that they touch.
struct Signature {
    Lanes lanes;

    Signature(const Weight *weight, int64_t size) {
        auto *words = (const char *)weight;
        int64_t left = size * sizeof(Weight);
        Lanes a = {}, b = {}, c = {}, d = {};
        auto add = [&](const char *at) {
            next(a, at), next(b, at + WORDS), next(c, at + 2 * WORDS), next(d, at + 3 * WORDS);
        };
#pragma GCC unroll 2
        for (; left >= CHAINS * WORDS; left -= CHAINS * WORDS, words += CHAINS * WORDS) add(words);
        if (left) {
            char last[CHAINS * WORDS] = {};
            std::memcpy(last, words, left);
            add(last);
        }
        // Odd multiples, so that nothing that one chain has seen is lost.
        lanes = a * 0x9e3779b1u + b * 0x85ebca77u + c * 0xc2b2ae3du + d * 0x27d4eb2fu;
    }

    static void next(Lanes &chain, const char *at) {
        Lanes x;
        std::memcpy(&x, at, sizeof x);
        x += chain;
        chain = (x << 1) | (x >> 31);
    }

    bool operator!=(const Lanes &other) const {
        const Lanes difference = lanes ^ other;
        uint32_t any = 0;
        for (size_t k = 0; k < WORDS / sizeof any; k++) any |= difference[k];
        return any != 0;
    }
};

inline Real clamped(Real x, Real bound) { return x < -bound ? -bound : x > bound ? bound : x; }

void step(const Row &row, const Scalars &s, int64_t first, int64_t last) {
    auto *weight = (Weight *)row.weight;
    auto *grad = (const Grad *)row.grad;
    auto *theta = (float *)row.theta, *rest = (float *)row.rest;
    auto *kept = (const uint8_t *)row.kept;
    auto *sums = (Lanes *)row.sums;
    const float lr = float(s.lr), decay = float(s.lr * s.pull), bound = float(s.lr * s.l1);
#if ADAM
    auto *avg = (float *)row.avg, *avg_sq = (float *)row.avg_sq;
    const double t = *(const float *)row.step;
    const double correction1 = -std::expm1(t * s.log_beta1), root = std::sqrt(-std::expm1(t * s.log_beta2));
    const float weight1 = float(s.weight1), beta2 = float(s.beta2), weight2 = float(s.weight2);
    const float rate = float(s.lr * root / correction1), eps = float(s.eps * root);
#else
    auto *buffer = (float *)row.buffer;
    const float momentum = float(s.momentum);
    const float norm = NORMALIZE ? *(const float *)row.norm : 1;
#endif
    for (int64_t start = first; start < last; start += BLOCK) {
        const int64_t end = start + BLOCK < last ? start + BLOCK : last;
        if (WATCH && MIRROR && QUICK) follow(weight + start, theta + start, rest + start, end - start, s.exponent);
        // Others are compared only where the weights are not those that the last step left, unless that is known.
        if (WATCH && MIRROR && !QUICK && sums && Signature(weight + start, end - start) != sums[start / BLOCK])
            apart(weight + start, theta + start, rest + start, end - start, s.exponent);
#pragma GCC ivdep
        for (int64_t i = start; i < end; i++) {
            const bool keep = MASK ? kept[i] != 0 : true;
            float g = (MAXIMIZE ? -1.0f : 1.0f) * widen(grad[i]);
            Real x = LEAN ? Real(read_off(widen(weight[i]), s.exponent)) : theta[i];
            Real change = KEEP ? rest[i] : 0.0f;
            const Real pulled = decay == 0 ? Real(0) : decay * x;  // what is infinite stays so
#if ADAM
            if (CHAIN) g *= float(slope_of_weight(x, s.exponent));
            float m = avg[i] + weight1 * (g - avg[i]);
            float v = beta2 * avg_sq[i] + weight2 * g * g;
            avg[i] = m = keep ? m : 0.0f;
            avg_sq[i] = v = keep ? v : 0.0f;
            change = change - pulled - rate * m / (std::sqrt(v) + eps);
#else
            float d = NORMALIZE ? g / norm : g;
            if (MOMENTUM) {
                float b = momentum * buffer[i] + d;
                buffer[i] = b = keep ? b : 0.0f;
                d = NESTEROV ? d + momentum * b : b;
            }
            change = change - pulled - lr * d;
#endif
            if (L1 == 1) {
                const Real value = x + change;
                const bool inside = std::fabs(value) <= bound;
                change = inside ? Real(0) : change - clamped(value, bound);
                x = inside ? Real(0) : x;
            }
            Real next = x + change;
            float left = float(change + (x - next)), w;
            if (L1 == 2) {  // in float64: next to the threshold the difference is small
                double value = signed_power(double(next) + (KEEP ? left : 0.0f), s.exponent);
                const double size = std::fabs(value) - s.lr * s.l1;
                value = size <= 0 ? 0.0 : std::copysign(size, value);
                const double exact = read_off(value, s.exponent);
                w = float(value), next = float(exact), left = float(exact - double(next));
            } else {
                w = float(signed_power(next, s.exponent));
            }
            if (!LEAN) theta[i] = keep ? float(next) : 0.0f;
            if (KEEP) rest[i] = keep ? left : 0.0f;
            if (MIRROR || LEAN) weight[i] = keep ? stored(w) : Weight(0);
        }
        if (WATCH && MIRROR && !QUICK && sums) sums[start / BLOCK] = Signature(weight + start, end - start).lanes;
    }
}

inline int64_t blocks(int64_t entries) { return (entries + BLOCK - 1) / BLOCK * BLOCK; }

}  // namespace

// Entries `first` to `last` of all rows one after another, up to whole blocks.
extern "C" void attsvm_step(const Row *rows, const Scalars *scalars, int64_t first, int64_t last) {
    for (int64_t start = 0; start < last; start += rows++->numel) {
        const int64_t numel = rows->numel, from = first > start ? blocks(first - start) : 0, to = blocks(last - start);
        if (from < numel) step(*rows, *scalars, from, to < numel ? to : numel);
    }
}
