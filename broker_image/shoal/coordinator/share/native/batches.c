/* Record batches: where each lies in a read, and the keys of its records. */
#include "bulk.h"

#if PY_VERSION_HEX >= 0x030E0000
#define HASH_BYTES(data, size) Py_HashBuffer(data, size)
#else
#define HASH_BYTES(data, size) _Py_HashBytes(data, size)
#endif

/* hashes(body, begin, end, count) -> list | None */
PyObject *bulk_hashes(PyObject *self, PyObject *args)
{
    Py_buffer body;
    Py_ssize_t at, end, count;
    if (!PyArg_ParseTuple(args, "y*nnn", &body, &at, &end, &count))
        return NULL;
    const uint8_t *data = body.buf;
    PyObject *keys = NULL;
    if (at < 0 || end > body.len || count < 0 || count > end)
        goto other;
    keys = PyList_New(count);
    if (keys == NULL)
        goto failed;
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t size = varint(data, body.len, &at);
        if (size < 12 || size & 1)
            goto other;
        Py_ssize_t place = at + 1, next = at + (size >> 1);
        if (next > end)
            goto other;
        while (place < body.len && data[place] & 0x80) /* The timestamp. */
            place++;
        place++;
        if (varint(data, body.len, &place) != 2 * i)
            goto other;
        int64_t key_size = varint(data, body.len, &place);
        if (key_size < 0)
            goto other;
        Py_hash_t hash = 0;
        if (!(key_size & 1)) {
            key_size >>= 1;
            if (key_size > body.len - place)
                goto other;
            hash = HASH_BYTES(data + place, key_size);
            hash = hash ? hash : 1;
        }
        PyObject *key = PyLong_FromSsize_t(hash);
        if (key == NULL)
            goto failed;
        PyList_SET_ITEM(keys, i, key);
        at = next;
    }
    PyBuffer_Release(&body);
    return keys;
other:
    PyBuffer_Release(&body);
    Py_XDECREF(keys);
    Py_RETURN_NONE;
failed:
    PyBuffer_Release(&body);
    Py_XDECREF(keys);
    return NULL;
}

static int append(PyObject *list, long long value)
{
    PyObject *number = PyLong_FromLongLong(value);
    int failed = number == NULL || PyList_Append(list, number) < 0;
    Py_XDECREF(number);
    return failed;
}

/* scan(data, first_wanted, bases, lasts, ends): the whole batches in `data` into the lists, up to
 * the first that has something passed by; where that begins, and the offset that comes there. */
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
    while (!failed && at + 61 <= view.len) {
        int64_t base = (int64_t)big_endian(data + at, 8);
        int32_t length = (int32_t)big_endian(data + at + 8, 4);
        int32_t delta = (int32_t)big_endian(data + at + 23, 4);
        if (length < 49 || length > view.len - at - 12 || data[at + 16] != 2 || delta < 0 ||
            data[at + 22] & 0x20 || base > expected || base < 0 || base > INT64_MAX - delta - 1)
            break;
        at += 12 + (Py_ssize_t)length;
        expected = base + delta + 1;
        failed = append(bases, base) || append(lasts, base + delta) || append(ends, at);
    }
    PyBuffer_Release(&view);
    return failed ? NULL : Py_BuildValue("(nL)", at, expected);
}
