/* Key ranges: the hashes of a batch's records, and batches without the records of other ranges.
 * `hashed_batches` does the same in Python, and tests/model/test_key_ranges_model.py compares
 * them. */
#include "key_ranges.h"
#include "crc32c.h"
#include "key_hash.h"
#include "integers.h"
#include "varints.h"

/* The fields of a batch in `HashedBatches.batches`. */
enum field { BASE, LAST, BEGIN, END, BODY, FIRST_RECORD, COUNT, FIELDS };
/* `BODY` of a batch whose records lie in the read, and of one that is always sent whole. */
enum { IN_READ = -1, WHOLE = -2 };
/* Bytes of the smallest record behind its length. */
enum { RECORD_SIZE_MIN = 6 };

/* key_hash(key) -> int */
PyObject *key_ranges_hash(PyObject *self, PyObject *key)
{
    Py_buffer view;
    if (PyObject_GetBuffer(key, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    int64_t hash = key_hash(view.buf, view.len);
    PyBuffer_Release(&view);
    return PyLong_FromLongLong(hash);
}

static int64_t offset_hash(int64_t offset)
{
    uint8_t bytes[8];
    for (int i = 7; i >= 0; i--, offset >>= 8)
        bytes[i] = (uint8_t)offset;
    return key_hash(bytes, 8);
}

/* Write the hashes of `count` records that fill the data, and their ends. Return 1, or 0 if the
 * data is something else. */
static int hash_records(const uint8_t *data, const uint8_t *end, int64_t base, int32_t count,
                        int64_t *hashes, int32_t *ends)
{
    const uint8_t *at = data;
    for (int32_t i = 0; i < count; i++) {
        int32_t size, delta;
        uint64_t timestamp;
        if (!varint32(&at, end, &size) || size < RECORD_SIZE_MIN || size > end - at)
            return 0;
        const uint8_t *next = at + size;
        at++; /* The attributes. */
        if (!varint64(&at, next, &timestamp) || !varint32(&at, next, &delta) || delta < 0 ||
            !varint32(&at, next, &size) || size < -1 || size > next - at)
            return 0;
        hashes[i] = size < 0 ? offset_hash(base + delta) : key_hash(at, size);
        at = next;
        ends[i] = (int32_t)(at - data);
    }
    return at == end;
}

/* record_hashes(data, begin, end, base_offset, count) -> (hashes, ends) as 64-bit and 32-bit
 * numbers, or None if the data is not that of `count` records. */
PyObject *key_ranges_record_hashes(PyObject *self, PyObject *args)
{
    Py_buffer view;
    Py_ssize_t begin, end;
    long long base;
    int count;
    if (!PyArg_ParseTuple(args, "y*nnLi", &view, &begin, &end, &base, &count))
        return NULL;
    PyObject *hashes = NULL, *ends = NULL, *found = NULL;
    if (begin < 0 || end < begin || end > view.len || end - begin > INT32_MAX || base < 0 ||
        base > INT64_MAX - INT32_MAX || count < 0 || count > (end - begin) / RECORD_SIZE_MIN) {
        PyBuffer_Release(&view);
        Py_RETURN_NONE;
    }
    hashes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * 8);
    ends = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * 4);
    if (hashes != NULL && ends != NULL) {
        const uint8_t *data = (const uint8_t *)view.buf + begin;
        found = hash_records(data, data + (end - begin), base, count,
                             (int64_t *)PyBytes_AS_STRING(hashes),
                             (int32_t *)PyBytes_AS_STRING(ends))
                    ? PyTuple_Pack(2, hashes, ends)
                    : Py_NewRef(Py_None);
    }
    Py_XDECREF(hashes);
    Py_XDECREF(ends);
    PyBuffer_Release(&view);
    return found;
}

#define NUMBER(batch, name, size) big_endian((batch) + BATCH_##name##_AT, size)

/* Return the size of the whole batch at the start of the data if `record_hashes` is not needed for
 * it: it is not compressed, a control batch, or has a wrong CRC. Otherwise 0. `is_plain` is whether
 * its records can be hashed as they are. */
static Py_ssize_t simple_batch(const uint8_t *batch, Py_ssize_t left, int *is_plain)
{
    if (left < BATCH_HEADER_SIZE || batch[BATCH_MAGIC_AT] != BATCH_MAGIC)
        return 0;
    int64_t size = NUMBER(batch, LENGTH, 4) + BATCH_OVERHEAD;
    int64_t base = NUMBER(batch, BASE_OFFSET, 8), delta = NUMBER(batch, LAST_OFFSET_DELTA, 4);
    if (size < BATCH_HEADER_SIZE || size > left || base < 0 || delta < 0 ||
        base > INT64_MAX - INT32_MAX)
        return 0;
    int attributes = batch[BATCH_ATTRIBUTES_LOW_AT];
    *is_plain = 0;
    if (attributes & BATCH_CONTROL_BIT ||
        crc32c(batch + BATCH_CRC_FROM, (Py_ssize_t)size - BATCH_CRC_FROM) !=
            (uint32_t)NUMBER(batch, CRC, 4))
        return (Py_ssize_t)size;
    int64_t count = NUMBER(batch, RECORD_COUNT, 4);
    *is_plain = count >= 0 && count <= (size - BATCH_HEADER_SIZE) / (RECORD_SIZE_MIN + 1);
    return attributes & BATCH_COMPRESSION_MASK ? 0 : (Py_ssize_t)size;
}

/* hash_batches(data, at, first_record) -> (batches, hashes, ends, at): the batches from `at` on, up
 * to one that is compressed, damaged in its header or not whole, and its position. `first_record`
 * is the number of the first record. */
PyObject *key_ranges_hash_batches(PyObject *self, PyObject *args)
{
    Py_buffer view;
    Py_ssize_t at, rows = 0, size;
    long long first_record;
    if (!PyArg_ParseTuple(args, "y*nL", &view, &at, &first_record))
        return NULL;
    const uint8_t *data = view.buf;
    int64_t room = 0, records = 0;
    int is_plain;
    if (at < 0 || at > view.len)
        at = view.len;
    Py_ssize_t end = at;
    for (; (size = simple_batch(data + end, view.len - end, &is_plain)); end += size, rows++)
        room += is_plain ? NUMBER(data + end, RECORD_COUNT, 4) : 0;
    PyObject *batches = PyBytes_FromStringAndSize(NULL, rows * FIELDS * 8);
    PyObject *hashes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)room * 8);
    PyObject *ends = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)room * 4);
    if (batches != NULL && hashes != NULL && ends != NULL) {
        int64_t *row = (int64_t *)PyBytes_AS_STRING(batches);
        for (; at < end; at += size, row += FIELDS) {
            const uint8_t *batch = data + at;
            size = simple_batch(batch, view.len - at, &is_plain);
            int64_t base = NUMBER(batch, BASE_OFFSET, 8), count = NUMBER(batch, RECORD_COUNT, 4);
            int found = is_plain && hash_records(batch + BATCH_HEADER_SIZE, batch + size, base,
                                                 (int32_t)count,
                                                 (int64_t *)PyBytes_AS_STRING(hashes) + records,
                                                 (int32_t *)PyBytes_AS_STRING(ends) + records);
            row[BASE] = base;
            row[LAST] = base + NUMBER(batch, LAST_OFFSET_DELTA, 4);
            row[BEGIN] = at;
            row[END] = at + size;
            row[BODY] = found ? IN_READ : WHOLE;
            row[FIRST_RECORD] = first_record + records;
            row[COUNT] = found ? count : 0;
            records += row[COUNT];
        }
        if (_PyBytes_Resize(&hashes, (Py_ssize_t)records * 8) == 0)
            _PyBytes_Resize(&ends, (Py_ssize_t)records * 4);
    }
    PyBuffer_Release(&view);
    if (batches != NULL && hashes != NULL && ends != NULL)
        return Py_BuildValue("(NNNn)", batches, hashes, ends, end);
    Py_XDECREF(batches);
    Py_XDECREF(hashes);
    Py_XDECREF(ends);
    return NULL;
}

/* A read of the log with the hashes of its records. */
typedef struct {
    Py_buffer data, expanded, batches, hashes, ends, ranges;
} Read;

/* Whether a hash is in one of the rising ranges. */
static inline int contains(const int64_t *ranges, Py_ssize_t count, int64_t hash)
{
    Py_ssize_t low = 0, high = count;
    if (count == 1)
        return (uint64_t)hash - (uint64_t)ranges[0] <= (uint64_t)ranges[1] - (uint64_t)ranges[0];
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        if (ranges[2 * middle + 1] < hash)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && ranges[2 * low] <= hash;
}

static void put(uint8_t *at, uint32_t value)
{
    for (int i = 3; i >= 0; i--, value >>= 8)
        at[i] = (uint8_t)value;
}

/* Write the batch without the records outside the ranges to `to`, which has room for the batch.
 * Return its size: 0 without a record, and that of the batch if the rest would not be smaller. -1
 * with an error. */
static Py_ssize_t thin(const Read *read, const int64_t *batch, uint8_t *to)
{
    const uint8_t *raw = (const uint8_t *)read->data.buf + batch[BEGIN];
    Py_ssize_t size = (Py_ssize_t)(batch[END] - batch[BEGIN]), made = BATCH_HEADER_SIZE;
    if (batch[BODY] == WHOLE) {
        memcpy(to, raw, size);
        return size;
    }
    int in_read = batch[BODY] == IN_READ;
    const uint8_t *body = in_read ? raw + BATCH_HEADER_SIZE
                                  : (const uint8_t *)read->expanded.buf + batch[BODY];
    Py_ssize_t room = in_read ? size - BATCH_HEADER_SIZE : read->expanded.len - batch[BODY];
    const int64_t *hashes = (const int64_t *)read->hashes.buf + batch[FIRST_RECORD];
    const int32_t *ends = (const int32_t *)read->ends.buf + batch[FIRST_RECORD];
    Py_ssize_t range_count = read->ranges.len / 16;
    uint32_t kept = 0;
    for (int64_t i = 0; i < batch[COUNT]; i++) {
        if (!contains(read->ranges.buf, range_count, hashes[i]))
            continue;
        int32_t begin = i ? ends[i - 1] : 0;
        if (begin < 0 || ends[i] < begin || ends[i] > room) {
            PyErr_SetString(PyExc_IndexError, "a record past the end");
            return -1;
        }
        if (ends[i] - begin >= size - made) { /* As large as the batch: send that. */
            memcpy(to, raw, size);
            return size;
        }
        memcpy(to + made, body + begin, ends[i] - begin);
        made += ends[i] - begin;
        kept++;
    }
    if (!kept)
        return 0;
    memcpy(to, raw, BATCH_HEADER_SIZE);
    to[BATCH_ATTRIBUTES_LOW_AT] &= (uint8_t)~BATCH_COMPRESSION_MASK;
    put(to + BATCH_LENGTH_AT, (uint32_t)(made - BATCH_OVERHEAD));
    put(to + BATCH_RECORD_COUNT_AT, kept);
    put(to + BATCH_CRC_AT, crc32c(to + BATCH_CRC_FROM, made - BATCH_CRC_FROM));
    return made;
}

static int is_sound(const Read *read, const int64_t *batch)
{
    int64_t records = read->hashes.len / 8 < read->ends.len / 4 ? read->hashes.len / 8
                                                                : read->ends.len / 4;
    return batch[BEGIN] >= 0 && batch[BEGIN] <= batch[END] - BATCH_HEADER_SIZE &&
           batch[END] <= read->data.len && batch[BODY] >= WHOLE &&
           batch[BODY] <= read->expanded.len && batch[FIRST_RECORD] >= 0 && batch[COUNT] >= 0 &&
           batch[FIRST_RECORD] <= records && batch[COUNT] <= records - batch[FIRST_RECORD];
}

/* records_in(data, expanded, batches, hashes, ends, ranges, first, past, size_max, min_one)
 * -> (batches, next): the batches from `first` to before `past` without the records outside the
 * ranges, up to the first that does not fit into `size_max`, and its number. With `min_one` the
 * first batch fits always. */
PyObject *key_ranges_records_in(PyObject *self, PyObject *args)
{
    Read read;
    Py_ssize_t first, past, size_max, made = 0;
    int min_one;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*nnnp", &read.data, &read.expanded, &read.batches,
                          &read.hashes, &read.ends, &read.ranges, &first, &past, &size_max,
                          &min_one))
        return NULL;
    const int64_t *batches = read.batches.buf;
    int sound = first >= 0 && past <= read.batches.len / (FIELDS * 8);
    Py_ssize_t room = 0;
    for (Py_ssize_t i = first; sound && i < past; i++) {
        sound = is_sound(&read, batches + i * FIELDS);
        room += sound ? (Py_ssize_t)(batches[i * FIELDS + END] - batches[i * FIELDS + BEGIN]) : 0;
    }
    PyObject *out = NULL;
    if (sound)
        out = PyBytes_FromStringAndSize(NULL, room);
    else
        PyErr_SetString(PyExc_IndexError, "a batch past the end");
    while (out != NULL && first < past) {
        uint8_t *to = (uint8_t *)PyBytes_AS_STRING(out) + made;
        Py_ssize_t size = thin(&read, batches + first * FIELDS, to);
        if (size < 0)
            Py_CLEAR(out);
        else if (size && made + size > size_max && (made || !min_one))
            break;
        else
            made += size, first++;
    }
    if (out != NULL)
        _PyBytes_Resize(&out, made);
    Py_buffer *views[] = {&read.data, &read.expanded, &read.batches,
                          &read.hashes, &read.ends, &read.ranges};
    for (size_t i = 0; i < sizeof views / sizeof *views; i++)
        PyBuffer_Release(views[i]);
    return out == NULL ? NULL : Py_BuildValue("(Nn)", out, first);
}
