/* Batches without the records of other members. */
#include "share_native.h"
#include "../../../record/native/crc32c.h"

enum { READ_ROOM = 32 * 1024 };

static void put(uint8_t *data, uint32_t value)
{
    for (int i = 3; i >= 0; i--, value >>= 8)
        data[i] = (uint8_t)value;
}

/* Write a batch with only the records in the ranges to `to`. Return its size, or 0 if the batch is
 * compressed, damaged or has an unusual layout. */
static Py_ssize_t thin(const uint8_t *batch, Py_ssize_t size, const int64_t *ranges,
                       Py_ssize_t range_count, uint8_t *to)
{
    int64_t base = (int64_t)big_endian(batch + BATCH_BASE_OFFSET_AT, 8);
    uint32_t count = (uint32_t)big_endian(batch + BATCH_RECORD_COUNT_AT, 4), kept = 0;
    if (batch[BATCH_ATTRIBUTES_LOW_AT] & (BATCH_COMPRESSION_MASK | BATCH_CONTROL_BIT) || batch[BATCH_MAGIC_AT] != BATCH_MAGIC)
        return 0;
    if (crc32c(batch + BATCH_CRC_FROM, size - BATCH_CRC_FROM) != (uint32_t)big_endian(batch + BATCH_CRC_AT, 4))
        return 0;
    Py_ssize_t at = BATCH_HEADER_SIZE, made = BATCH_HEADER_SIZE, range = 0;
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
    memcpy(to, batch, BATCH_HEADER_SIZE);
    put(to + BATCH_LENGTH_AT, (uint32_t)(made - BATCH_OVERHEAD));
    put(to + BATCH_RECORD_COUNT_AT, kept);
    put(to + BATCH_CRC_AT, crc32c(to + BATCH_CRC_FROM, made - BATCH_CRC_FROM));
    return made;
}

static int number_at(PyObject *list, Py_ssize_t at, int64_t *number)
{
    *number = at >= 0 && at < PyList_GET_SIZE(list) ? PyLong_AsLongLong(PyList_GET_ITEM(list, at)) : -1;
    if (*number == -1 && !PyErr_Occurred())
        PyErr_SetString(PyExc_IndexError, "no such batch");
    return PyErr_Occurred() ? -1 : 0;
}

/* A read of the log: its bytes, and the positions of its batches. */
typedef struct {
    Py_buffer view;
    PyObject *bases, *lasts, *ends;
} Read;

/* Bytes that grow as they are written. */
typedef struct {
    PyObject *bytes;
    Py_ssize_t size;
} Made;

static int make_room(Made *made, Py_ssize_t more)
{
    Py_ssize_t room = PyBytes_GET_SIZE(made->bytes);
    return room - made->size >= more ? 0 : _PyBytes_Resize(&made->bytes, 2 * room + more);
}

/* Add the batches of a read with records in rising ranges, without their other records if possible.
 * Return 0, or -1 with an error. */
static int add(Made *made, const Read *read, const int64_t *ranges, Py_ssize_t range_count)
{
    const uint8_t *data = read->view.buf;
    int64_t begin, end, base, last;
    Py_ssize_t range = 0;
    for (Py_ssize_t i = 0; range < range_count; i++) {
        if ((i = bisect(read->lasts, ranges[2 * range], i)) < 0)
            return -1;
        if (i == PyList_GET_SIZE(read->lasts))
            break;
        begin = 0;
        if (number_at(read->lasts, i, &last) || number_at(read->bases, i, &base) ||
            number_at(read->ends, i, &end) || (i && number_at(read->ends, i - 1, &begin)))
            return -1;
        if (begin < 0 || begin > end - BATCH_HEADER_SIZE || end > read->view.len) {
            PyErr_SetString(PyExc_IndexError, "a batch past the end");
            return -1;
        }
        while (range < range_count && ranges[2 * range + 1] < base)
            range++;
        if (range == range_count || ranges[2 * range] > last)
            continue;
        Py_ssize_t kept = 0;
        if (make_room(made, end - begin) < 0)
            return -1;
        uint8_t *to = (uint8_t *)PyBytes_AS_STRING(made->bytes) + made->size;
        if (ranges[2 * range] > base || ranges[2 * range + 1] < last)
            kept = thin(data + begin, end - begin, ranges + 2 * range, range_count - range, to);
        if (!kept) {
            kept = end - begin;
            memcpy(to, data + begin, kept);
        }
        made->size += kept;
        while (range < range_count && ranges[2 * range + 1] <= last)
            range++;
    }
    return 0;
}

/* thinned(data, bases, lasts, ends, ranges) -> bytes: the batches of a read with records in rising
 * ranges (first, last, ...), without their other records if possible. */
PyObject *bulk_thinned(PyObject *self, PyObject *args)
{
    Read read;
    PyObject *wanted;
    if (!PyArg_ParseTuple(args, "y*O!O!O!O!", &read.view, &PyList_Type, &read.bases, &PyList_Type,
                          &read.lasts, &PyList_Type, &read.ends, &PyList_Type, &wanted))
        return NULL;
    Py_ssize_t range_count = PyList_GET_SIZE(wanted);
    Made made = {PyBytes_FromStringAndSize(NULL, read.view.len + 1), 0};
    int64_t *ranges = PyMem_Malloc((range_count + 1) * 2 * sizeof(int64_t));
    if (ranges == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; !PyErr_Occurred() && i < range_count; i++) {
        PyObject *one = PyList_GET_ITEM(wanted, i);
        if (!PyTuple_Check(one) || PyTuple_GET_SIZE(one) < 2) {
            PyErr_SetString(PyExc_TypeError, "a range is a tuple");
            break;
        }
        ranges[2 * i] = PyLong_AsLongLong(PyTuple_GET_ITEM(one, 0));
        ranges[2 * i + 1] = PyLong_AsLongLong(PyTuple_GET_ITEM(one, 1));
    }
    if (PyErr_Occurred() || add(&made, &read, ranges, range_count) < 0)
        Py_CLEAR(made.bytes);
    else
        _PyBytes_Resize(&made.bytes, made.size);
    PyMem_Free(ranges);
    PyBuffer_Release(&read.view);
    return made.bytes;
}

static void close_read(Read *read)
{
    PyBuffer_Release(&read->view);
    Py_CLEAR(read->bases);
    Py_CLEAR(read->lasts);
    Py_CLEAR(read->ends);
}

/* The names of the fields of a `Batches`, made once. */
enum { DATA, BASES, LASTS, ENDS, FIELDS };
static const char *field_texts[FIELDS] = {"data", "bases", "lasts", "ends"};
static PyObject *field_names[FIELDS];

static PyObject *field_of(PyObject *batches, int field)
{
    if (field_names[field] == NULL)
        field_names[field] = PyUnicode_InternFromString(field_texts[field]);
    return field_names[field] == NULL ? NULL : PyObject_GetAttr(batches, field_names[field]);
}

/* The fields of a `Batches`: 1, or -1 with an error. Return 0, and open nothing, if it ends below
 * an offset. */
static int open_read(PyObject *batches, int64_t offset, Read *read)
{
    memset(read, 0, sizeof(Read));
    if ((read->lasts = field_of(batches, LASTS)) == NULL)
        return -1;
    int64_t last;
    int is_list = PyList_Check(read->lasts);
    if (is_list && number_at(read->lasts, PyList_GET_SIZE(read->lasts) - 1, &last) == 0 &&
        last < offset) {
        Py_CLEAR(read->lasts);
        return 0;
    }
    PyObject *data = PyErr_Occurred() ? NULL : field_of(batches, DATA);
    int failed = data == NULL || PyObject_GetBuffer(data, &read->view, PyBUF_SIMPLE) < 0;
    Py_XDECREF(data);
    if (failed)
        read->view.obj = NULL;
    if (failed || (read->bases = field_of(batches, BASES)) == NULL ||
        (read->ends = field_of(batches, ENDS)) == NULL) {
        close_read(read);
        return -1;
    }
    if (PyList_Check(read->bases) && is_list && PyList_Check(read->ends))
        return 1;
    close_read(read);
    PyErr_SetString(PyExc_TypeError, "places of batches are lists");
    return -1;
}

/* Return how many of the first of `count` rising offsets a read has, and their ranges. Return 0 if
 * the first lies behind the read, -2 if it lies before it, -1 with an error. */
static Py_ssize_t ranges_in(const Read *read, const int64_t *offsets, Py_ssize_t count,
                            int64_t *ranges, Py_ssize_t *range_count)
{
    int64_t base, last;
    Py_ssize_t taken = 0;
    *range_count = 0;
    if (number_at(read->bases, 0, &base) ||
        number_at(read->lasts, PyList_GET_SIZE(read->lasts) - 1, &last))
        return -1;
    if (offsets[0] < base)
        return -2;
    for (; taken < count && offsets[taken] <= last; taken++) {
        if (!taken || offsets[taken] != offsets[taken - 1] + 1)
            ranges[2 * (*range_count)++] = offsets[taken];
        ranges[2 * *range_count - 1] = offsets[taken];
    }
    return taken;
}

/* gathered(reads, offsets, room, least) -> (number of offsets, bytes): the batches of the first
 * rising offsets in rising reads without holes. Stop at a read that is larger than the rest of the
 * room and than `least`, and after the first read if no room is left. */
PyObject *bulk_gathered(PyObject *self, PyObject *args)
{
    PyObject *reads, *chosen;
    Py_ssize_t room, least, at = 0;
    if (!PyArg_ParseTuple(args, "O!O!nn", &PyList_Type, &reads, &PyList_Type, &chosen, &room, &least))
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(chosen);
    Made made = {PyBytes_FromStringAndSize(NULL, READ_ROOM), 0};
    int64_t *offsets = PyMem_Malloc((count + 1) * 3 * sizeof(int64_t));
    if (offsets == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; !PyErr_Occurred() && i < count; i++)
        number_at(chosen, i, &offsets[i]);
    for (Py_ssize_t i = 0; !PyErr_Occurred() && at < count && i < PyList_GET_SIZE(reads); i++) {
        Read read;
        Py_ssize_t range_count, left = room - made.size, taken;
        int opened;
        if (at && left <= 0)
            break;
        if ((opened = open_read(PyList_GET_ITEM(reads, i), offsets[at], &read)) < 0)
            break;
        if (!opened)
            continue;
        taken = ranges_in(&read, offsets + at, count - at, offsets + count, &range_count);
        if (taken > 0 && read.view.len > (left > least ? left : least))
            taken = -2;
        if (taken > 0 && add(&made, &read, offsets + count, range_count) == 0)
            at += taken;
        close_read(&read);
        if (taken < 0)
            break;
    }
    PyMem_Free(offsets);
    if (PyErr_Occurred())
        Py_CLEAR(made.bytes);
    else
        _PyBytes_Resize(&made.bytes, made.size);
    return made.bytes == NULL ? NULL : Py_BuildValue("(nN)", at, made.bytes);
}
