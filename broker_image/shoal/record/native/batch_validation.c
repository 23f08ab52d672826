/* The module `_record_native` validates the encoded records of a batch in one pass. `batch_validation.in_python` does
 * the same in Python, and tests/unit/record/test_batch_validation.py compares them. `sound` recognises a whole
 * batch that is stored as it came; tests/unit/record/test_sound_batches.py compares it with the long way.
 * `key_ranges.c` has the functions of key ranges, and `header_values.c` finds headers. The end of the record or of the data bounds every
 * read. Sums of timestamps wrap in unsigned arithmetic. A size is compared
 * with the remaining bytes before it is added to a pointer. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "crc32c.h"
#include "header_values.h"
#include "key_ranges.h"
#include "integers.h"
#include "varints.h"

/* As in `walker.Fault`. */
enum fault {
    SOUND, TOO_FEW, TRAILING, SIZE, VARINT, OFFSET, KEY, VALUE, HEADERS, HEADER_KEY, HEADER_VALUE,
    END
};

#define NO_TIMESTAMP (-1)
/* Bytes of the smallest record behind its length. */
#define RECORD_SIZE_MIN 6
/* The GIL is released for data above this size, in bytes. */
#define RELEASE_ABOVE (1 << 20)

typedef struct {
    int32_t index;
    int keyless;
    int64_t timestamp;
} Flag;

typedef struct {
    const uint8_t *data, *end;
    int64_t count, base_timestamp, oldest, newest;
    int keyed;
    Flag *flags;
    Py_ssize_t flags_max, flags_room, flags_size;
    /* Results. */
    int64_t index, flagged, max_timestamp;
    const uint8_t *place;
    int no_memory;
} Walk;

/* Return the wrapped sum of two signed numbers, as Java computes it. */
static inline int64_t wrapped(int64_t a, uint64_t b)
{
    uint64_t sum = (uint64_t)a + b;
    return sum <= INT64_MAX ? (int64_t)sum : -(int64_t)(UINT64_MAX - sum) - 1;
}

static int flag(Walk *walk, int keyless, int64_t timestamp)
{
    walk->flagged++;
    if (walk->flags_size >= walk->flags_max)
        return 1;
    if (walk->flags_size == walk->flags_room) {
        Py_ssize_t room = walk->flags_room ? 2 * walk->flags_room : 64;
        Flag *flags = PyMem_RawRealloc(walk->flags, (size_t)room * sizeof(Flag));
        if (flags == NULL) {
            walk->no_memory = 1;
            return 0;
        }
        walk->flags = flags;
        walk->flags_room = room;
    }
    walk->flags[walk->flags_size++] = (Flag){(int32_t)walk->index, keyless, timestamp};
    return 1;
}

/* Skip a field of `size` bytes, where -1 is null and takes none; 0 if it does not fit. */
static inline int skip(const uint8_t **at, const uint8_t *end, int32_t size)
{
    if (size < -1 || size > end - *at)
        return 0;
    *at += size > 0 ? size : 0;
    return 1;
}

static enum fault skip_headers(const uint8_t *at, const uint8_t *end)
{
    int32_t count, size;
    if (!varint32(&at, end, &count))
        return VARINT;
    if (count < 0 || count > end - at)
        return HEADERS;
    for (int32_t i = 0; i < count; i++) {
        if (!varint32(&at, end, &size))
            return VARINT;
        if (size < 0 || !skip(&at, end, size))
            return HEADER_KEY;
        if (!varint32(&at, end, &size))
            return VARINT;
        if (!skip(&at, end, size))
            return HEADER_VALUE;
    }
    return at == end ? SOUND : END;
}

static enum fault walk_records(Walk *walk)
{
    const uint8_t *at = walk->data;
    int32_t size, offset;
    for (walk->index = 0; walk->index < walk->count; walk->index++) {
        uint64_t delta;
        walk->place = at;
        if (at == walk->end)
            return TOO_FEW;
        if (!varint32(&at, walk->end, &size))
            return VARINT;
        if (size < RECORD_SIZE_MIN || size > walk->end - at)
            return SIZE;
        const uint8_t *end = at + size;
        at++; /* The attributes, which are unused. */
        if (!varint64(&at, end, &delta) || !varint32(&at, end, &offset))
            return VARINT;
        if (offset != walk->index)
            return OFFSET;
        if (!varint32(&at, end, &size))
            return VARINT;
        if (!skip(&at, end, size))
            return KEY;
        int keyless = size < 0;
        if (!varint32(&at, end, &size))
            return VARINT;
        if (!skip(&at, end, size))
            return VALUE;
        if (at + 1 != end || *at != 0) { /* Else there are no headers. */
            enum fault fault = skip_headers(at, end);
            if (fault != SOUND)
                return fault;
        }
        int64_t timestamp = wrapped(walk->base_timestamp, delta);
        if (timestamp > walk->max_timestamp)
            walk->max_timestamp = timestamp;
        int late = (timestamp < walk->oldest || timestamp > walk->newest) &&
                   timestamp != NO_TIMESTAMP;
        if (((keyless && walk->keyed) || late) && !flag(walk, keyless && walk->keyed, timestamp))
            return SOUND;
        at = end;
    }
    walk->place = at;
    return at == walk->end ? SOUND : TRAILING;
}

static PyObject *flags_of(const Walk *walk)
{
    PyObject *found = PyList_New(walk->flags_size);
    for (Py_ssize_t i = 0; found != NULL && i < walk->flags_size; i++) {
        const Flag *one = walk->flags + i;
        PyObject *pair = one->keyless
                             ? Py_BuildValue("(iO)", (int)one->index, Py_None)
                             : Py_BuildValue("(iL)", (int)one->index, (long long)one->timestamp);
        if (pair == NULL)
            Py_CLEAR(found);
        else
            PyList_SET_ITEM(found, i, pair);
    }
    return found;
}

/* walk(body, count, base_timestamp, oldest, newest, keyed, flags_max)
 * -> (fault, index, place, max_timestamp, flags, flagged) */
static PyObject *walk_walk(PyObject *self, PyObject *args)
{
    Py_buffer body;
    long long count, base_timestamp, oldest, newest;
    int keyed;
    Py_ssize_t flags_max;
    if (!PyArg_ParseTuple(args, "y*LLLLpn", &body, &count, &base_timestamp, &oldest, &newest,
                          &keyed, &flags_max))
        return NULL;
    const uint8_t *data = body.len ? body.buf : (const uint8_t *)"";
    Walk walk = {
        .data = data, .end = data + body.len, .count = count, .base_timestamp = base_timestamp,
        .oldest = oldest, .newest = newest, .keyed = keyed, .flags_max = flags_max,
        .max_timestamp = NO_TIMESTAMP, .place = data,
    };
    enum fault fault = SOUND;
    if (count < 0 || count > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "%lld records", count);
    } else if (body.len > RELEASE_ABOVE) {
        Py_BEGIN_ALLOW_THREADS
        fault = walk_records(&walk);
        Py_END_ALLOW_THREADS
    } else {
        fault = walk_records(&walk);
    }
    PyObject *found = NULL;
    if (walk.no_memory)
        PyErr_NoMemory();
    if (!PyErr_Occurred())
        found = Py_BuildValue("(iLnLNL)", (int)fault, (long long)walk.index,
                              (Py_ssize_t)(walk.place - walk.data),
                              (long long)walk.max_timestamp, flags_of(&walk),
                              (long long)walk.flagged);
    PyMem_RawFree(walk.flags);
    PyBuffer_Release(&body);
    return found;
}

#define FIELD(name, size) big_endian(data + BATCH_##name##_AT, size)

/* Whether a whole batch has a valid header and CRC, and is not compressed. The records are left. */
static int has_sound_header(const uint8_t *data, Py_ssize_t size, int64_t size_max, int create_time)
{
    if (size < BATCH_HEADER_SIZE || size > size_max || size > RELEASE_ABOVE)
        return 0;
    if (data[BATCH_MAGIC_AT] != BATCH_MAGIC || FIELD(BASE_OFFSET, 8) != 0 ||
        FIELD(LENGTH, 4) + BATCH_OVERHEAD != size)
        return 0;
    int attributes = data[BATCH_ATTRIBUTES_LOW_AT];
    if (attributes & (BATCH_COMPRESSION_MASK | BATCH_CONTROL_BIT) ||
        (create_time && attributes & BATCH_LOG_APPEND_TIME_BIT))
        return 0;
    int64_t count = FIELD(RECORD_COUNT, 4);
    if (count <= 0 || count != FIELD(LAST_OFFSET_DELTA, 4) + 1)
        return 0;
    int has_producer = FIELD(PRODUCER_ID, 8) >= 0;
    if (has_producer ? FIELD(BASE_SEQUENCE, 4) < 0 : attributes & BATCH_TRANSACTIONAL_BIT)
        return 0;
    uint32_t crc = (uint32_t)FIELD(CRC, 4);
    return crc == crc32c(data + BATCH_CRC_FROM, size - BATCH_CRC_FROM);
}

/* sound(data, size_max, now, before, after, keyed, create_time) -> the header's fields, or None
 *
 * For a batch that a topic stores as it came: valid, not compressed, and under create time with
 * timestamps from `before` ms before now to `after` ms after it. None for all others, of which
 * `log.validation` finds out what to do with them or what is wrong. */
static PyObject *walk_sound(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    if (given != 7) {
        PyErr_SetString(PyExc_TypeError, "sound() takes 7 arguments");
        return NULL;
    }
    int64_t size_max = PyLong_AsLongLong(args[1]), now = PyLong_AsLongLong(args[2]);
    int64_t before = PyLong_AsLongLong(args[3]), after = PyLong_AsLongLong(args[4]);
    int keyed = PyObject_IsTrue(args[5]), create_time = PyObject_IsTrue(args[6]);
    Py_buffer view;
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    const uint8_t *data = view.buf;
    PyObject *found = NULL;
    if (has_sound_header(data, view.len, size_max, create_time)) {
        int64_t oldest = INT64_MIN, newest = INT64_MAX;
        if (create_time && __builtin_sub_overflow(now, before, &oldest))
            oldest = INT64_MIN;
        if (create_time && __builtin_add_overflow(now, after, &newest))
            newest = INT64_MAX;
        const uint8_t *records = data + BATCH_HEADER_SIZE;
        Walk walk = {
            .data = records, .end = data + view.len, .count = FIELD(RECORD_COUNT, 4),
            .base_timestamp = FIELD(BASE_TIMESTAMP, 8), .oldest = oldest, .newest = newest,
            .keyed = keyed, .max_timestamp = NO_TIMESTAMP, .place = records,
        };
        if (walk_records(&walk) == SOUND && !walk.flagged &&
            (!create_time || walk.max_timestamp == FIELD(MAX_TIMESTAMP, 8)))
            found = Py_BuildValue(
                "(LLLLLLLLLLLLL)", FIELD(BASE_OFFSET, 8), FIELD(LENGTH, 4), FIELD(LEADER_EPOCH, 4),
                FIELD(MAGIC, 1), FIELD(CRC, 4) & 0xFFFFFFFFLL, FIELD(ATTRIBUTES, 2),
                FIELD(LAST_OFFSET_DELTA, 4), FIELD(BASE_TIMESTAMP, 8), FIELD(MAX_TIMESTAMP, 8),
                FIELD(PRODUCER_ID, 8), FIELD(PRODUCER_EPOCH, 2), FIELD(BASE_SEQUENCE, 4),
                FIELD(RECORD_COUNT, 4));
    }
    PyBuffer_Release(&view);
    if (found == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return found;
}

/* crc32c(data) -> int, for tests: the checksum that other modules compute by the same source. */
static PyObject *walk_crc32c(PyObject *self, PyObject *arg)
{
    Py_buffer view;
    if (PyObject_GetBuffer(arg, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    uint32_t crc = crc32c(view.buf, view.len);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(crc);
}

/* crc32c_by_table(data) -> int, for tests: the same without the processor's instruction. */
static PyObject *walk_crc32c_by_table(PyObject *self, PyObject *arg)
{
    Py_buffer view;
    if (PyObject_GetBuffer(arg, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    crc32c_make_table();
    uint32_t crc = crc32c_by_table(view.buf, view.len);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(crc);
}

static PyMethodDef methods[] = {
    {"crc32c", walk_crc32c, METH_O, NULL},
    {"crc32c_by_table", walk_crc32c_by_table, METH_O, NULL},
    {"first_header_values", header_values_first, METH_VARARGS, NULL},
    {"hash_batches", key_ranges_hash_batches, METH_VARARGS, NULL},
    {"key_hash", key_ranges_hash, METH_O, NULL},
    {"record_hashes", key_ranges_record_hashes, METH_VARARGS, NULL},
    {"records_in", key_ranges_records_in, METH_VARARGS, NULL},
    {"sound", (PyCFunction)(void (*)(void))walk_sound, METH_FASTCALL, NULL},
    {"walk", walk_walk, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_record_native", NULL, 0, methods, 0, 0, 0, 0};

PyMODINIT_FUNC PyInit__record_native(void)
{
    return PyModule_Create(&module);
}
