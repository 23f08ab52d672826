/* Variable-length integers of records, bounded by the end of the data. */
#ifndef SHOAL_VARINTS_H
#define SHOAL_VARINTS_H
#include <stdint.h>

/* Read the unsigned varint of at most `bits` bits at *at; 0 if it is wider or has no end. */
static inline int uvarint(const uint8_t **at, const uint8_t *end, int bits, uint64_t *found)
{
    const uint8_t *next = *at;
    uint64_t value = 0;
    for (int shift = 0; shift < bits && next < end; shift += 7) {
        uint64_t part = *next & 0x7F;
        if (shift + 7 > bits && part >> (bits - shift))
            return 0;
        value |= part << shift;
        if (*next++ < 0x80) {
            *at = next;
            *found = value;
            return 1;
        }
    }
    return 0;
}

static inline int varint32(const uint8_t **at, const uint8_t *end, int32_t *found)
{
    uint64_t value;
    if (*at < end && **at < 0x80)
        value = *(*at)++;
    else if (!uvarint(at, end, 32, &value))
        return 0;
    *found = (int32_t)((int64_t)(value >> 1) ^ -(int64_t)(value & 1));
    return 1;
}

static inline int varint64(const uint8_t **at, const uint8_t *end, uint64_t *found)
{
    uint64_t value;
    if (!uvarint(at, end, 64, &value))
        return 0;
    *found = (value >> 1) ^ (0 - (value & 1));
    return 1;
}

#endif
