/* The hash of a key: XXH64 with seed 42, without its lowest bit. `key_hash.in_python` is the same.
 * Source: the xxHash specification, "XXH64 algorithm description". */
#ifndef SHOAL_KEY_HASH_H
#define SHOAL_KEY_HASH_H
#include <stdint.h>

#define KEY_HASH_SEED 42
#define PRIME_1 0x9E3779B185EBCA87ULL
#define PRIME_2 0xC2B2AE3D27D4EB4FULL
#define PRIME_3 0x165667B19E3779F9ULL
#define PRIME_4 0x85EBCA77C2B2AE63ULL
#define PRIME_5 0x27D4EB2F165667C5ULL

static inline uint64_t rotated(uint64_t value, int bits)
{
    return value << bits | value >> (64 - bits);
}

/* Return the little-endian number of `size` bytes. */
static inline uint64_t lane(const uint8_t *at, int size)
{
    uint64_t value = 0;
    for (int i = size - 1; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

static inline uint64_t mixed(uint64_t sum, uint64_t input)
{
    return rotated(sum + input * PRIME_2, 31) * PRIME_1;
}

static inline int64_t key_hash(const uint8_t *key, int64_t size)
{
    const uint8_t *at = key, *end = key + size;
    uint64_t hash = KEY_HASH_SEED + PRIME_5;
    if (size >= 32) {
        uint64_t sums[4] = {KEY_HASH_SEED + PRIME_1 + PRIME_2, KEY_HASH_SEED + PRIME_2,
                            KEY_HASH_SEED, KEY_HASH_SEED - PRIME_1};
        for (; end - at >= 32; at += 32)
            for (int i = 0; i < 4; i++)
                sums[i] = mixed(sums[i], lane(at + 8 * i, 8));
        hash = rotated(sums[0], 1) + rotated(sums[1], 7) + rotated(sums[2], 12) +
               rotated(sums[3], 18);
        for (int i = 0; i < 4; i++)
            hash = (hash ^ mixed(0, sums[i])) * PRIME_1 + PRIME_4;
    }
    hash += (uint64_t)size;
    for (; end - at >= 8; at += 8)
        hash = rotated(hash ^ mixed(0, lane(at, 8)), 27) * PRIME_1 + PRIME_4;
    for (; end - at >= 4; at += 4)
        hash = rotated(hash ^ lane(at, 4) * PRIME_1, 23) * PRIME_2 + PRIME_3;
    for (; at < end; at++)
        hash = rotated(hash ^ *at * PRIME_5, 11) * PRIME_1;
    hash = (hash ^ hash >> 33) * PRIME_2;
    hash = (hash ^ hash >> 29) * PRIME_3;
    return (int64_t)((hash ^ hash >> 32) >> 1);
}

#endif
