/* CRC-32C (Castagnoli), with the processor's own instruction where there is one. Callers hold the
 * GIL. tests/unit/test_record_walk.py compares it with the package `crc32c`. */
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
__attribute__((target("sse4.2"))) static uint32_t crc32c_by_instruction(const uint8_t *data,
                                                                        Py_ssize_t size)
{
    uint64_t crc = 0xFFFFFFFF, word;
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
        if (__builtin_cpu_supports("sse4.2"))
            crc32c_function = crc32c_by_instruction;
#endif
    }
    return crc32c_function(data, size);
}

#endif
