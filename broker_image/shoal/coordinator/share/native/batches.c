/* Record batches: their positions in a read, and the keys of their records. */
#include "share_native.h"
#include <string.h>

/* Compute the key hashes of `count` records from `at` on, 0 for no key. Return 1, or 0 if a record
 * has an unusual layout. */
static int hashes_of(const uint8_t *data, Py_ssize_t size, Py_ssize_t at, Py_ssize_t end,
                     Py_ssize_t count, int64_t *hashes)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t length = varint(data, size, &at);
        if (length < 12 || length & 1)
            return 0;
        Py_ssize_t place = at + 1, next = at + (length >> 1);
        if (next > end)
            return 0;
        while (place < size && data[place] & 0x80) /* The timestamp. */
            place++;
        place++;
        if (varint(data, size, &place) != 2 * i)
            return 0;
        int64_t key_size = varint(data, size, &place);
        if (key_size < 0)
            return 0;
        hashes[i] = 0;
        if (!(key_size & 1)) {
            key_size >>= 1;
            if (key_size > size - place)
                return 0;
            Py_hash_t hash = HASH_BYTES(data + place, key_size);
            hashes[i] = hash ? hash : 1;
        }
        at = next;
    }
    return 1;
}

/* hashes(body, begin, end, count) -> list | None */
PyObject *bulk_hashes(PyObject *self, PyObject *args)
{
    Py_buffer body;
    Py_ssize_t at, end, count;
    if (!PyArg_ParseTuple(args, "y*nnn", &body, &at, &end, &count))
        return NULL;
    PyObject *keys = NULL;
    int64_t *hashes = NULL;
    if (at >= 0 && end <= body.len && count >= 0 && count <= end) {
        hashes = PyMem_Malloc((count + 1) * sizeof(int64_t));
        if (hashes == NULL)
            PyErr_NoMemory();
        else if (hashes_of(body.buf, body.len, at, end, count, hashes))
            keys = PyList_New(count);
    }
    for (Py_ssize_t i = 0; keys != NULL && i < count; i++) {
        PyObject *key = PyLong_FromLongLong(hashes[i]);
        if (key == NULL)
            Py_CLEAR(keys);
        else
            PyList_SET_ITEM(keys, i, key);
    }
    PyMem_Free(hashes);
    PyBuffer_Release(&body);
    if (keys == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return keys;
}

static int number_of(PyObject *list, Py_ssize_t at, int64_t *number)
{
    *number = at < PyList_GET_SIZE(list) ? PyLong_AsLongLong(PyList_GET_ITEM(list, at)) : -1;
    return *number < 0 || PyErr_Occurred() ? -1 : 0;
}

/* keys(data, bases, lasts, ends, cursor, budget) -> (number of batches, 64-bit hashes): the
 * keys from `cursor` on of the first batches that end within the budget and that `hashes` can
 * read. */
PyObject *bulk_keys(PyObject *self, PyObject *args)
{
    Py_buffer view;
    PyObject *bases, *lasts, *ends;
    long long cursor, budget;
    if (!PyArg_ParseTuple(args, "y*O!O!O!LL", &view, &PyList_Type, &bases, &PyList_Type, &lasts,
                          &PyList_Type, &ends, &cursor, &budget))
        return NULL;
    const uint8_t *data = view.buf;
    Py_ssize_t room = 0, size = 0, whole = 0;
    int64_t *hashes = NULL, begin = 0, base, last, end;
    for (; whole < PyList_GET_SIZE(lasts); whole++, begin = end) {
        if (number_of(bases, whole, &base) || number_of(lasts, whole, &last) ||
            number_of(ends, whole, &end) || cursor < 0 || last < cursor || last - cursor >= budget)
            break;
        if (begin > end - BATCH_HEADER_SIZE || end > view.len ||
            data[begin + BATCH_ATTRIBUTES_LOW_AT] & BATCH_COMPRESSION_MASK)
            break;
        int64_t count = (int32_t)big_endian(data + begin + BATCH_RECORD_COUNT_AT, 4);
        if (count <= 0 || count != last - base + 1 || count > end - begin || base > cursor + size)
            break;
        if (count > room - size) {
            int64_t *more = PyMem_Realloc(hashes, (2 * room + count) * sizeof(int64_t));
            if (more == NULL) {
                PyErr_NoMemory();
                break;
            }
            hashes = more;
            room = 2 * room + count;
        }
        if (!hashes_of(data, view.len, begin + BATCH_HEADER_SIZE, end, count, hashes + size))
            break;
        Py_ssize_t known = (Py_ssize_t)(cursor + size - base);
        if (known >= count)
            break;
        memmove(hashes + size, hashes + size + known, (count - known) * sizeof(int64_t));
        size += count - known;
    }
    PyObject *answer = NULL;
    if (!PyErr_Occurred())
        answer = Py_BuildValue("(ny#)", whole, size ? (char *)hashes : "", size * (Py_ssize_t)8);
    PyMem_Free(hashes);
    PyBuffer_Release(&view);
    return answer;
}

static int append(PyObject *list, long long value)
{
    PyObject *number = PyLong_FromLongLong(value);
    int failed = number == NULL || PyList_Append(list, number) < 0;
    Py_XDECREF(number);
    return failed;
}

/* scan(data, first_wanted, bases, lasts, ends): add the whole batches of `data` to the lists, up to
 * the first with offsets to skip. Return its position, and the offset expected there. */
PyObject *bulk_scan(PyObject *self, PyObject *args)
{
    Py_buffer view;
    long long expected;
    PyObject *bases, *lasts, *ends;
    if (!PyArg_ParseTuple(args, "y*LO!O!O!", &view, &expected, &PyList_Type, &bases, &PyList_Type,
                          &lasts, &PyList_Type, &ends))
        return NULL;
    const uint8_t *data = view.buf;
    Py_ssize_t at = 0;
    int failed = 0;
    while (!failed && at + BATCH_HEADER_SIZE <= view.len) {
        int64_t base = (int64_t)big_endian(data + at + BATCH_BASE_OFFSET_AT, 8);
        int32_t length = (int32_t)big_endian(data + at + BATCH_LENGTH_AT, 4);
        int32_t delta = (int32_t)big_endian(data + at + BATCH_LAST_OFFSET_DELTA_AT, 4);
        if (length < BATCH_HEADER_SIZE - BATCH_OVERHEAD || length > view.len - at - BATCH_OVERHEAD ||
            data[at + BATCH_MAGIC_AT] != BATCH_MAGIC || delta < 0 ||
            data[at + BATCH_ATTRIBUTES_LOW_AT] & BATCH_CONTROL_BIT || base > expected || base < 0 ||
            base > INT64_MAX - delta - 1)
            break;
        at += BATCH_OVERHEAD + (Py_ssize_t)length;
        expected = base + delta + 1;
        failed = append(bases, base) || append(lasts, base + delta) || append(ends, at);
    }
    PyBuffer_Release(&view);
    return failed ? NULL : Py_BuildValue("(nL)", at, expected);
}
