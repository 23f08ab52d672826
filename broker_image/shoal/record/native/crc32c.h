/* CRC-32C (Castagnoli), with the processor's own instruction where there is one. Callers hold the
 * GIL. tests/unit/record/test_batch_validation.py compares it with the package `crc32c`. */
#ifndef SHOAL_CRC32C_H
#define SHOAL_CRC32C_H
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

static uint32_t crc32c_table[256];
static uint32_t (*crc32c_function)(const uint8_t *, Py_ssize_t) = NULL;

static uint32_t crc32c_by_table(const uint8_t *data, Py_ssize_t size)
{
    uint32_t crc = 0xFFFFFFFF;
    for (Py_ssize_t i = 0; i < size; i++)
        crc = crc32c_table[(crc ^ data[i]) & 0xFF] ^ crc >> 8;
    return ~crc;
}

#if defined(__x86_64__)
/* The instruction takes eight bytes each cycle, but its result is ready after three. Three lanes,
 * one after the other in the data, keep it busy. */
#define CRC32C_LONG_LANE 4096
#define CRC32C_SHORT_LANE 256

/* What a lane of zeros makes of a checksum, for each byte of the checksum. */
typedef uint32_t crc32c_zeros[4][256];
static crc32c_zeros crc32c_long_zeros, crc32c_short_zeros;

static void crc32c_make_zeros(crc32c_zeros zeros, int lane)
{
    for (int bit = 0; bit < 32; bit++) {
        uint32_t value = (uint32_t)1 << bit;
        for (int i = 0; i < lane; i++)
            value = crc32c_table[value & 0xFF] ^ value >> 8;
        zeros[bit / 8][1 << bit % 8] = value;
    }
    /* The map is linear: any byte is the sum of its bits. */
    for (int at = 0; at < 4; at++)
        for (int byte = 1; byte < 256; byte++)
            zeros[at][byte] = zeros[at][byte & (byte - 1)] ^ zeros[at][byte & -byte];
}

static uint32_t crc32c_past_zeros(crc32c_zeros zeros, uint64_t crc)
{
    return zeros[0][crc & 0xFF] ^ zeros[1][crc >> 8 & 0xFF] ^ zeros[2][crc >> 16 & 0xFF] ^
           zeros[3][crc >> 24 & 0xFF];
}

/* The checksum after three lanes. */
__attribute__((target("sse4.2"))) static uint64_t crc32c_three_lanes(uint64_t first,
                                                                     const uint8_t *data, int lane,
                                                                     crc32c_zeros zeros)
{
    uint64_t second = 0, third = 0, word;
    for (const uint8_t *end = data + lane; data < end; data += 8) {
        memcpy(&word, data, 8);
        first = _mm_crc32_u64(first, word);
        memcpy(&word, data + lane, 8);
        second = _mm_crc32_u64(second, word);
        memcpy(&word, data + 2 * lane, 8);
        third = _mm_crc32_u64(third, word);
    }
    return crc32c_past_zeros(zeros, crc32c_past_zeros(zeros, first) ^ second) ^ third;
}

__attribute__((target("sse4.2"))) static uint32_t crc32c_by_instruction(const uint8_t *data,
                                                                        Py_ssize_t size)
{
    uint64_t crc = 0xFFFFFFFF, word;
    for (; size >= 3 * CRC32C_LONG_LANE; size -= 3 * CRC32C_LONG_LANE, data += 3 * CRC32C_LONG_LANE)
        crc = crc32c_three_lanes(crc, data, CRC32C_LONG_LANE, crc32c_long_zeros);
    for (; size >= 3 * CRC32C_SHORT_LANE;
         size -= 3 * CRC32C_SHORT_LANE, data += 3 * CRC32C_SHORT_LANE)
        crc = crc32c_three_lanes(crc, data, CRC32C_SHORT_LANE, crc32c_short_zeros);
    for (; size >= 8; size -= 8, data += 8) {
        memcpy(&word, data, 8);
        crc = _mm_crc32_u64(crc, word);
    }
    for (; size > 0; size--)
        crc = _mm_crc32_u8((uint32_t)crc, *data++);
    return ~(uint32_t)crc;
}
#endif

static void crc32c_make_table(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; bit++)
            value = value & 1 ? value >> 1 ^ 0x82F63B78 : value >> 1;
        crc32c_table[i] = value;
    }
}

static uint32_t crc32c(const uint8_t *data, Py_ssize_t size)
{
    if (crc32c_function == NULL) {
        crc32c_make_table();
        crc32c_function = crc32c_by_table;
#if defined(__x86_64__)
        if (__builtin_cpu_supports("sse4.2")) {
            crc32c_make_zeros(crc32c_long_zeros, CRC32C_LONG_LANE);
            crc32c_make_zeros(crc32c_short_zeros, CRC32C_SHORT_LANE);
            crc32c_function = crc32c_by_instruction;
        }
#endif
    }
    return crc32c_function(data, size);
}

#endif
