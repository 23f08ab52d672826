/* Signed integers of fixed size, as in headers of batches. */
#ifndef SHOAL_INTEGERS_H
#define SHOAL_INTEGERS_H
#include <stdint.h>

/* Read the integer of `size` bytes at `at`. */
static inline int64_t big_endian(const uint8_t *at, int size)
{
    uint64_t value = 0;
    for (int i = 0; i < size; i++)
        value = value << 8 | at[i];
    int unused = 64 - 8 * size;
    return (int64_t)(value << unused) >> unused;
}

#endif
