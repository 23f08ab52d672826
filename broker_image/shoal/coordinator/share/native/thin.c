/* Batches without the records of them that others have. */
#include "bulk.h"
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

enum { BASE_AT = 0, LENGTH_AT = 8, MAGIC_AT = 16, CRC_AT = 17, ATTRIBUTES_AT = 21, COUNT_AT = 57 };
enum { HEADER_SIZE = 61, LENGTH_FROM = 12, CRC_FROM = 21, COMPRESSION = 0x07, CONTROL = 0x20 };

static uint32_t table[256];

static uint32_t crc_by_table(const uint8_t *data, Py_ssize_t size)
{
    uint32_t crc = 0xFFFFFFFF;
    for (Py_ssize_t i = 0; i < size; i++)
        crc = table[(crc ^ data[i]) & 0xFF] ^ crc >> 8;
    return ~crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc_by_machine(const uint8_t *data,
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

static uint32_t (*crc_of)(const uint8_t *, Py_ssize_t) = NULL;

/* CRC-32C (Castagnoli), by the machine's own instruction where it has one. */
static uint32_t crc32c(const uint8_t *data, Py_ssize_t size)
{
    if (crc_of == NULL) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t value = i;
            for (int bit = 0; bit < 8; bit++)
                value = value & 1 ? value >> 1 ^ 0x82F63B78 : value >> 1;
            table[i] = value;
        }
        crc_of = crc_by_table;
#if defined(__x86_64__)
        if (__builtin_cpu_supports("sse4.2"))
            crc_of = crc_by_machine;
#endif
    }
    return crc_of(data, size);
}

static void put(uint8_t *data, uint32_t value)
{
    for (int i = 3; i >= 0; i--, value >>= 8)
        data[i] = (uint8_t)value;
}

/* A batch with what of it lies in ranges, from `at` on, in `to`: its size, or 0 where it is
 * compressed, damaged or otherwise not to be taken apart. */
static Py_ssize_t thin(const uint8_t *batch, Py_ssize_t size, const int64_t *ranges,
                       Py_ssize_t range_count, uint8_t *to)
{
    int64_t base = (int64_t)big_endian(batch + BASE_AT, 8);
    uint32_t count = (uint32_t)big_endian(batch + COUNT_AT, 4), kept = 0;
    if (batch[ATTRIBUTES_AT + 1] & (COMPRESSION | CONTROL) || batch[MAGIC_AT] != 2)
        return 0;
    if (crc32c(batch + CRC_FROM, size - CRC_FROM) != (uint32_t)big_endian(batch + CRC_AT, 4))
        return 0;
    Py_ssize_t at = HEADER_SIZE, made = HEADER_SIZE, range = 0;
    for (uint32_t i = 0; i < count; i++) {
        Py_ssize_t begin = at;
        int64_t length = varint(batch, size, &at);
        if (length < 12 || length & 1 || length >> 1 > size - at)
            return 0;
        Py_ssize_t place = at + 1, end = at + (Py_ssize_t)(length >> 1);
        while (place < end && batch[place] & 0x80) /* The timestamp. */
            place++;
        place++;
        int64_t delta = varint(batch, end, &place);
        if (delta < 0 || delta & 1)
            return 0;
        int64_t offset = base + (delta >> 1);
        while (range < range_count && ranges[2 * range + 1] < offset)
            range++;
        if (range < range_count && ranges[2 * range] <= offset) {
            memcpy(to + made, batch + begin, end - begin);
            made += end - begin;
            kept++;
        }
        at = end;
    }
    if (at != size || kept == 0 || kept == count)
        return 0;
    memcpy(to, batch, HEADER_SIZE);
    put(to + LENGTH_AT, (uint32_t)(made - LENGTH_FROM));
    put(to + COUNT_AT, kept);
    put(to + CRC_AT, crc32c(to + CRC_FROM, made - CRC_FROM));
    return made;
}

static int number_at(PyObject *list, Py_ssize_t at, int64_t *number)
{
    *number = at < PyList_GET_SIZE(list) ? PyLong_AsLongLong(PyList_GET_ITEM(list, at)) : -1;
    if (*number == -1 && !PyErr_Occurred())
        PyErr_SetString(PyExc_IndexError, "no such batch");
    return PyErr_Occurred() ? -1 : 0;
}

/* thinned(data, bases, lasts, ends, ranges) -> bytes: the batches of a read that reach into rising
 * ranges (first, last, ...), each without its other records if it can be taken apart. */
PyObject *bulk_thinned(PyObject *self, PyObject *args)
{
    Py_buffer view;
    PyObject *bases, *lasts, *ends, *wanted, *made = NULL;
    if (!PyArg_ParseTuple(args, "y*O!O!O!O!", &view, &PyList_Type, &bases, &PyList_Type, &lasts,
                          &PyList_Type, &ends, &PyList_Type, &wanted))
        return NULL;
    const uint8_t *data = view.buf;
    Py_ssize_t range_count = PyList_GET_SIZE(wanted), batch_count = PyList_GET_SIZE(lasts);
    Py_ssize_t size = 0, range = 0;
    int64_t begin = 0, end, base, last;
    int64_t *ranges = PyMem_Malloc((range_count ? range_count : 1) * 2 * sizeof(int64_t));
    if (ranges == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; ranges != NULL && i < range_count; i++) {
        PyObject *one = PyList_GET_ITEM(wanted, i);
        if (!PyTuple_Check(one) || PyTuple_GET_SIZE(one) < 2) {
            PyErr_SetString(PyExc_TypeError, "a range is a tuple");
            goto done;
        }
        ranges[2 * i] = PyLong_AsLongLong(PyTuple_GET_ITEM(one, 0));
        ranges[2 * i + 1] = PyLong_AsLongLong(PyTuple_GET_ITEM(one, 1));
    }
    if (PyErr_Occurred() || (made = PyBytes_FromStringAndSize(NULL, view.len)) == NULL)
        goto done;
    uint8_t *to = (uint8_t *)PyBytes_AS_STRING(made);
    for (Py_ssize_t i = 0; i < batch_count && range < range_count; i++, begin = end) {
        if (number_at(bases, i, &base) || number_at(lasts, i, &last) || number_at(ends, i, &end))
            goto failed;
        if (begin + HEADER_SIZE > end || end > view.len) {
            PyErr_SetString(PyExc_IndexError, "a batch past the end");
            goto failed;
        }
        while (range < range_count && ranges[2 * range + 1] < base)
            range++;
        if (range == range_count || ranges[2 * range] > last)
            continue;
        Py_ssize_t kept = 0;
        if (ranges[2 * range] > base || ranges[2 * range + 1] < last)
            kept = thin(data + begin, end - begin, ranges + 2 * range, range_count - range,
                        to + size);
        if (!kept) {
            kept = end - begin;
            memcpy(to + size, data + begin, kept);
        }
        size += kept;
    }
    if (_PyBytes_Resize(&made, size) < 0)
        goto done;
    goto done;
failed:
    Py_CLEAR(made);
done:
    PyMem_Free(ranges);
    PyBuffer_Release(&view);
    return made;
}
