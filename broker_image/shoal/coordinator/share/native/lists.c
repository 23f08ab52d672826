/* Lists of ranges: of what a fetch gets, where that lies in a read, and as it is persisted. */
#include "bulk.h"

/* ranges(offsets) -> [(first, last, 1)]: rising offsets as new deliveries. */
PyObject *bulk_ranges(PyObject *self, PyObject *offsets)
{
    if (!PyList_CheckExact(offsets))
        return PyErr_Format(PyExc_TypeError, "offsets are a list");
    PyObject *found = PyList_New(0);
    Py_ssize_t size = PyList_GET_SIZE(offsets), begin = 0;
    long long before = 0;
    for (Py_ssize_t i = 0; found != NULL && i <= size; i++) {
        long long offset = i < size ? PyLong_AsLongLong(PyList_GET_ITEM(offsets, i)) : -2;
        if (offset == -1 && PyErr_Occurred()) {
            Py_CLEAR(found);
        } else if (i && (offset != before + 1 || i == size)) {
            PyObject *one = Py_BuildValue("(OOi)", PyList_GET_ITEM(offsets, begin),
                                          PyList_GET_ITEM(offsets, i - 1), 1);
            if (one == NULL || PyList_Append(found, one) < 0)
                Py_CLEAR(found);
            Py_XDECREF(one);
            begin = i;
        }
        before = offset;
    }
    return found;
}

/* The first of rising numbers that is not below `wanted`, from `low` on; -1 with an error. */
static Py_ssize_t bisect(PyObject *numbers, long long wanted, Py_ssize_t low)
{
    Py_ssize_t high = PyList_GET_SIZE(numbers);
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        long long number = PyLong_AsLongLong(PyList_GET_ITEM(numbers, middle));
        if (number == -1 && PyErr_Occurred())
            return -1;
        if (number < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* spans(lasts, ends, acquired) -> [(begin, end)], of ranges that rise and lie in the batches. */
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

/* joined(batches) -> sorted state batches with equal neighbours as one | None where they overlap */
PyObject *bulk_joined(PyObject *self, PyObject *batches)
{
    if (!PyList_CheckExact(batches))
        return PyErr_Format(PyExc_TypeError, "batches are a list");
    PyObject *found = PyList_New(0);
    long long first = 0, last = -1, state = -1, count = -1;
    Py_ssize_t size = PyList_GET_SIZE(batches), begin = 0;
    for (Py_ssize_t i = 0; found != NULL && i <= size; i++) {
        long long low = 0, high = 0, kind = -2, times = -2;
        if (i < size && !PyArg_ParseTuple(PyList_GET_ITEM(batches, i), "LLLL", &low, &high, &kind,
                                          &times)) {
            Py_CLEAR(found);
            break;
        }
        if (i && i < size && low <= last) {
            Py_DECREF(found);
            Py_RETURN_NONE;
        }
        if (i && i < size && low == last + 1 && kind == state && times == count) {
            last = high;
            continue;
        }
        if (i) {
            PyObject *one = PyList_GET_ITEM(batches, begin), *made = NULL;
            if (i - begin > 1)
                one = made = Py_BuildValue("(LLLL)", first, last, state, count);
            if (one == NULL || PyList_Append(found, one) < 0)
                Py_CLEAR(found);
            Py_XDECREF(made);
        }
        begin = i;
        first = low, last = high, state = kind, count = times;
    }
    return found;
}

/* accepts(batches) -> how many records (first, last, b"\1") accept, all of them rising | None */
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
