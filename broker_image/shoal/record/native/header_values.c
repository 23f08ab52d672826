/* The first value of a header in each record, as `dedup_ids` needs it. The end of the record bounds
 * every read. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>
#include "header_values.h"
#include "varints.h"

/* Skip a field with its size, where -1 is null and takes no bytes. Return its size, or -2 if it does
 * not fit. */
static int32_t field(const uint8_t **at, const uint8_t *end)
{
    int32_t size;
    if (!varint32(at, end, &size) || size < -1 || size > end - *at)
        return -2;
    *at += size > 0 ? size : 0;
    return size;
}

/* Find the first header with a name in `[at, end)`, which are a record's headers. Return its value's
 * size, -1 without one or for null, -2 if the layout is unusual. */
static int32_t find_value(const uint8_t *at, const uint8_t *end, const uint8_t *name,
                          Py_ssize_t name_size, const uint8_t **value)
{
    int32_t count, found = -1;
    int is_found = 0;
    if (!varint32(&at, end, &count) || count < 0 || count > end - at)
        return -2;
    for (; count > 0; count--) {
        int32_t key_size = field(&at, end);
        if (key_size < 0)
            return -2;
        int is_name = key_size == name_size && !memcmp(at - key_size, name, key_size);
        if (is_name && at[-key_size - 1] != 2 * name_size)
            return -2; /* Its size takes more bytes than it needs: Python decides. */
        int32_t size = field(&at, end);
        if (size < -1)
            return -2;
        if (is_name && !is_found) {
            is_found = 1;
            found = size;
            *value = at - (size > 0 ? size : 0);
        }
    }
    return at == end ? found : -2;
}

/* Append the offset delta and the value of the record at `*at`. Return 1, 0 if its layout is
 * unusual, -1 with an error. */
static int add_value(const uint8_t **at, const uint8_t *past, const uint8_t *name,
                     Py_ssize_t name_size, PyObject *found)
{
    int32_t size, delta;
    uint64_t timestamp;
    if (!varint32(at, past, &size) || size < 6 || size > past - *at)
        return 0;
    const uint8_t *next = *at + 1, *end = *at + size, *value = NULL;
    *at = end;
    if (!varint64(&next, end, &timestamp) || !varint32(&next, end, &delta) ||
        field(&next, end) < -1 || field(&next, end) < -1 || next >= end)
        return 0;
    size = find_value(next, end, name, name_size, &value);
    if (size <= 0)
        return size >= -1;
    PyObject *one = Py_BuildValue("(iy#)", (int)delta, (const char *)value, (Py_ssize_t)size);
    int failed = one == NULL || PyList_Append(found, one) < 0;
    Py_XDECREF(one);
    return failed ? -1 : 1;
}

/* first_header_values(body, count, name) -> [(offset delta, value)] | None: the records in which the
 * first header with the name has a value that is not empty. None if a record has an unusual layout. */
PyObject *header_values_first(PyObject *self, PyObject *args)
{
    Py_buffer view;
    Py_ssize_t count, name_size;
    const char *name;
    if (!PyArg_ParseTuple(args, "y*ny#", &view, &count, &name, &name_size))
        return NULL;
    PyObject *found = PyList_New(0);
    const uint8_t *at = view.buf, *end = at + view.len;
    int done = found == NULL ? -1 : 1;
    for (; done > 0 && count > 0; count--)
        done = add_value(&at, end, (const uint8_t *)name, name_size, found);
    if (done > 0 && at != end)
        done = 0;
    PyBuffer_Release(&view);
    if (done > 0)
        return found;
    Py_XDECREF(found);
    if (done < 0)
        return NULL;
    Py_RETURN_NONE;
}
