/* Lists of ranges: acquired offsets, their bytes in a read, and state batches. */
#include "share_native.h"

/* ranges(offsets) -> [(first, last, 1)]: rising offsets as new deliveries. */
PyObject *bulk_ranges(PyObject *self, PyObject *offsets)
{
    if (!PyList_CheckExact(offsets))
        return PyErr_Format(PyExc_TypeError, "offsets are a list");
    PyObject *found = PyList_New(0), *one = PyLong_FromLong(1);
    Py_ssize_t size = PyList_GET_SIZE(offsets), begin = 0;
    long long before = 0;
    if (one == NULL)
        Py_CLEAR(found);
    for (Py_ssize_t i = 0; found != NULL && i <= size; i++) {
        long long offset = i < size ? PyLong_AsLongLong(PyList_GET_ITEM(offsets, i)) : -2;
        if (offset == -1 && PyErr_Occurred()) {
            Py_CLEAR(found);
        } else if (i && (offset != before + 1 || i == size)) {
            PyObject *range = PyTuple_Pack(3, PyList_GET_ITEM(offsets, begin),
                                           PyList_GET_ITEM(offsets, i - 1), one);
            if (range == NULL || PyList_Append(found, range) < 0)
                Py_CLEAR(found);
            Py_XDECREF(range);
            begin = i;
        }
        before = offset;
    }
    Py_XDECREF(one);
    return found;
}

/* spans(lasts, ends, acquired) -> [(begin, end)], for rising ranges within the batches. */
PyObject *bulk_spans(PyObject *self, PyObject *args)
{
    PyObject *lasts, *ends, *acquired;
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyList_Type, &lasts, &PyList_Type, &ends, &PyList_Type,
                          &acquired))
        return NULL;
    PyObject *found = PyList_New(0);
    Py_ssize_t size = PyList_GET_SIZE(acquired), low = 0;
    long long begin = -1, end = -1;
    for (Py_ssize_t i = 0; found != NULL && i <= size; i++) {
        long long next = -1, past = -1;
        if (i < size) {
            PyObject *one = PyList_GET_ITEM(acquired, i);
            if (!PyTuple_Check(one) || PyTuple_GET_SIZE(one) < 2)
                PyErr_SetString(PyExc_TypeError, "a range is a tuple");
            else if ((low = bisect(lasts, PyLong_AsLongLong(PyTuple_GET_ITEM(one, 0)), low)) >= 0) {
                Py_ssize_t high = bisect(lasts, PyLong_AsLongLong(PyTuple_GET_ITEM(one, 1)), low);
                if (high >= PyList_GET_SIZE(ends))
                    PyErr_SetString(PyExc_IndexError, "a range behind the batches");
                else if (high >= 0) {
                    next = low ? PyLong_AsLongLong(PyList_GET_ITEM(ends, low - 1)) : 0;
                    past = PyLong_AsLongLong(PyList_GET_ITEM(ends, high));
                }
            }
            if (PyErr_Occurred()) {
                Py_CLEAR(found);
                break;
            }
            if (begin >= 0 && next <= end) {
                end = past > end ? past : end;
                continue;
            }
        }
        if (begin >= 0) {
            PyObject *span = Py_BuildValue("(LL)", begin, end);
            if (span == NULL || PyList_Append(found, span) < 0)
                Py_CLEAR(found);
            Py_XDECREF(span);
        }
        begin = next;
        end = past;
    }
    return found;
}

/* The four numbers of a state batch: 0, or -1 with an error. */
static int numbers_of(PyObject *batch, long long numbers[4])
{
    if (!PyTuple_Check(batch) || PyTuple_GET_SIZE(batch) != 4) {
        PyErr_SetString(PyExc_TypeError, "a state batch is four numbers");
        return -1;
    }
    for (int i = 0; i < 4; i++)
        numbers[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(batch, i));
    return PyErr_Occurred() ? -1 : 0;
}

/* joined(batches, start) -> state batches from the start on with equal neighbours joined | None if
 * they do not rise */
PyObject *bulk_joined(PyObject *self, PyObject *args)
{
    PyObject *batches;
    long long start;
    if (!PyArg_ParseTuple(args, "O!L", &PyList_Type, &batches, &start))
        return NULL;
    PyObject *found = PyList_New(0), *begin = NULL; /* The batch that begins what is joined. */
    long long first = 0, last = -1, state = 0, count = 0;
    int is_changed = 0;
    Py_ssize_t size = PyList_GET_SIZE(batches);
    for (Py_ssize_t i = 0; found != NULL && i <= size; i++) {
        long long next[4] = {0, 0, 0, 0};
        if (i < size && numbers_of(PyList_GET_ITEM(batches, i), next) < 0) {
            Py_CLEAR(found);
            break;
        }
        if (i < size && next[1] < start)
            continue;
        if (i < size && begin != NULL && next[0] <= last) {
            Py_DECREF(found);
            Py_RETURN_NONE;
        }
        if (i < size && begin != NULL && next[0] - 1 == last && next[2] == state &&
            next[3] == count) {
            last = next[1];
            is_changed = 1;
            continue;
        }
        if (begin != NULL) {
            PyObject *made = is_changed ? Py_BuildValue("(LLLL)", first, last, state, count)
                                        : Py_NewRef(begin);
            if (made == NULL || PyList_Append(found, made) < 0)
                Py_CLEAR(found);
            Py_XDECREF(made);
        }
        if (i < size) {
            begin = PyList_GET_ITEM(batches, i);
            is_changed = next[0] < start;
            first = is_changed ? start : next[0];
            last = next[1], state = next[2], count = next[3];
        }
    }
    return found;
}

/* rises(batches) -> whether each begins behind the one before it */
PyObject *bulk_rises(PyObject *self, PyObject *batches)
{
    if (!PyList_CheckExact(batches))
        return PyErr_Format(PyExc_TypeError, "batches are a list");
    long long last = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(batches); i++) {
        long long next[4];
        if (numbers_of(PyList_GET_ITEM(batches, i), next) < 0)
            return NULL;
        if (i && next[0] <= last)
            Py_RETURN_FALSE;
        last = next[1];
    }
    Py_RETURN_TRUE;
}

static uint8_t *put(uint8_t *to, uint64_t value, int size)
{
    for (int i = size - 1; i >= 0; i--, value >>= 8)
        to[i] = (uint8_t)value;
    return to + size;
}

/* packed(batches) -> state batches encoded for an update: >qqbhB, the last without tags. */
PyObject *bulk_packed(PyObject *self, PyObject *batches)
{
    if (!PyList_CheckExact(batches))
        return PyErr_Format(PyExc_TypeError, "batches are a list");
    PyObject *made = PyBytes_FromStringAndSize(NULL, PyList_GET_SIZE(batches) * 20);
    uint8_t *to = made == NULL ? NULL : (uint8_t *)PyBytes_AS_STRING(made);
    for (Py_ssize_t i = 0; made != NULL && i < PyList_GET_SIZE(batches); i++) {
        long long next[4];
        if (numbers_of(PyList_GET_ITEM(batches, i), next) < 0) {
            Py_CLEAR(made);
            break;
        }
        if (next[2] != (int8_t)next[2] || next[3] != (int16_t)next[3]) {
            PyErr_SetString(PyExc_OverflowError, "a state has 8 bits, a delivery count 16");
            Py_CLEAR(made);
            break;
        }
        to = put(put(to, next[0], 8), next[1], 8);
        to = put(put(put(to, next[2], 1), next[3], 2), 0, 1);
    }
    return made;
}

/* acquired(ranges) -> ranges encoded for the answer to a fetch: >qqhB, the last without tags. */
PyObject *bulk_acquired(PyObject *self, PyObject *ranges)
{
    if (!PyList_CheckExact(ranges))
        return PyErr_Format(PyExc_TypeError, "ranges are a list");
    PyObject *made = PyBytes_FromStringAndSize(NULL, PyList_GET_SIZE(ranges) * 19);
    uint8_t *to = made == NULL ? NULL : (uint8_t *)PyBytes_AS_STRING(made);
    for (Py_ssize_t i = 0; made != NULL && i < PyList_GET_SIZE(ranges); i++) {
        PyObject *one = PyList_GET_ITEM(ranges, i);
        long long next[3] = {0, 0, 0};
        if (!PyTuple_Check(one) || PyTuple_GET_SIZE(one) != 3)
            PyErr_SetString(PyExc_TypeError, "a range is three numbers");
        for (int j = 0; j < 3 && !PyErr_Occurred(); j++)
            next[j] = PyLong_AsLongLong(PyTuple_GET_ITEM(one, j));
        if (!PyErr_Occurred() && next[2] != (int16_t)next[2])
            PyErr_SetString(PyExc_OverflowError, "a delivery count has 16 bits");
        if (PyErr_Occurred()) {
            Py_CLEAR(made);
            break;
        }
        to = put(put(put(put(to, next[0], 8), next[1], 8), next[2], 2), 0, 1);
    }
    return made;
}

/* accepts(batches) -> number of records that rising (first, last, b"\1") accept | None */
PyObject *bulk_accepts(PyObject *self, PyObject *batches)
{
    if (!PyList_CheckExact(batches))
        return PyErr_Format(PyExc_TypeError, "batches are a list");
    long long before = -1, records = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(batches); i++) {
        PyObject *one = PyList_GET_ITEM(batches, i);
        if (!PyTuple_Check(one) || PyTuple_GET_SIZE(one) != 3)
            Py_RETURN_NONE;
        PyObject *types = PyTuple_GET_ITEM(one, 2);
        if (!PyBytes_Check(types) || PyBytes_GET_SIZE(types) != 1 ||
            PyBytes_AS_STRING(types)[0] != ACCEPT)
            Py_RETURN_NONE;
        long long first = PyLong_AsLongLong(PyTuple_GET_ITEM(one, 0));
        long long last = PyLong_AsLongLong(PyTuple_GET_ITEM(one, 1));
        if (PyErr_Occurred())
            return NULL;
        if (first <= before || last < first)
            Py_RETURN_NONE;
        records += last - first + 1;
        before = last;
    }
    return PyLong_FromLongLong(records);
}
