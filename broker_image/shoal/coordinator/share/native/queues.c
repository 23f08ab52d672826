/* The queues of keys (`key_queues.py`): dicts, lists and a set of Python ints, as Python has them. */
#include "bulk.h"

/* Take the value of a key out of a dict: 1, or 0 where it has none, or -1 with an error. */
static int pop(PyObject *dict, PyObject *key, PyObject **value)
{
#if PY_VERSION_HEX >= 0x030D0000
    return PyDict_Pop(dict, key, value);
#else
    *value = _PyDict_Pop(dict, key, Py_None);
    if (*value == Py_None)
        Py_CLEAR(*value);
    return *value != NULL ? 1 : PyErr_Occurred() ? -1 : 0;
#endif
}

/* put_new(ready, key_of, queues, first, keys) -> keys of which there is more than one now */
PyObject *bulk_put_new(PyObject *self, PyObject *args)
{
    PyObject *ready, *key_of, *queues, *keys;
    long long first;
    if (!PyArg_ParseTuple(args, "O!O!O!LO!", &PyList_Type, &ready, &PyDict_Type, &key_of,
                          &PyDict_Type, &queues, &first, &PyList_Type, &keys))
        return NULL;
    Py_ssize_t waiting = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(keys); i++) {
        PyObject *key = PyList_GET_ITEM(keys, i), *queue = NULL, *offset;
        int is_key = PyObject_IsTrue(key), failed = is_key < 0;
        if (failed || (offset = PyLong_FromLongLong(first + i)) == NULL)
            return NULL;
        if (is_key) {
            failed = PyDict_SetItem(key_of, offset, key) < 0;
            queue = failed ? NULL : PyDict_GetItemWithError(queues, key);
            if (queue != NULL) {
                waiting += PyList_GET_SIZE(queue) == 1;
                failed = PyList_Append(queue, offset) < 0;
            } else if (!failed && !(failed = PyErr_Occurred() != NULL)) {
                PyObject *made = PyList_New(1);
                failed = made == NULL;
                if (!failed) {
                    Py_INCREF(offset);
                    PyList_SET_ITEM(made, 0, offset);
                    failed = PyDict_SetItem(queues, key, made) < 0;
                    Py_DECREF(made);
                }
            }
        }
        if (!failed && queue == NULL)
            failed = PyList_Append(ready, offset) < 0;
        Py_DECREF(offset);
        if (failed)
            return NULL;
    }
    return PyLong_FromSsize_t(waiting);
}

/* Where the first record of a key stands in the queues: borrowed; NULL and no error without one. */
static PyObject *first_of(PyObject *queues, PyObject *key)
{
    PyObject *queue = PyDict_GetItemWithError(queues, key);
    return queue == NULL || !PyList_GET_SIZE(queue) ? NULL : PyList_GET_ITEM(queue, 0);
}

/* choose(ready, key_of, queues, busy, held, firsts, states, counts, records, splitting, chosen):
 * `ready` is sorted; how many of its entries have been dealt with. */
PyObject *bulk_choose(PyObject *self, PyObject *args)
{
    PyObject *ready, *key_of, *queues, *busy, *held, *chosen, *one = NULL;
    Py_buffer firsts_view, states_view, counts_view;
    Py_ssize_t records;
    int splitting;
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!y*y*y*niO!", &PyList_Type, &ready, &PyDict_Type, &key_of,
                          &PyDict_Type, &queues, &PyDict_Type, &busy, &PySet_Type, &held,
                          &firsts_view, &states_view, &counts_view, &records, &splitting,
                          &PyList_Type, &chosen))
        return NULL;
    const int64_t *firsts = firsts_view.buf;
    const uint8_t *states = states_view.buf, *counts = counts_view.buf;
    Py_ssize_t rows = states_view.len, at = 0, row = -1;
    int failed = (one = PyLong_FromLong(1)) == NULL;
    for (; !failed && at < PyList_GET_SIZE(ready) && records > 0; at++) {
        PyObject *offset = PyList_GET_ITEM(ready, at);
        long long place = PyLong_AsLongLong(offset);
        if ((failed = place == -1 && PyErr_Occurred()) || !rows)
            break;
        if (place < firsts[0])
            continue;
        if (row < 0 || firsts[row] > place || (row + 1 < rows && firsts[row + 1] <= place))
            row = row_of(firsts, rows, place);
        if (states[row] != AVAILABLE)
            continue;
        PyObject *key = PyDict_GetItemWithError(key_of, offset);
        if ((failed = key == NULL && PyErr_Occurred()))
            break;
        if (key != NULL) {
            PyObject *front = first_of(queues, key);
            if ((failed = front == NULL && PyErr_Occurred()))
                break;
            int is_first = front != NULL ? PyObject_RichCompareBool(front, offset, Py_EQ) : 0;
            if ((failed = is_first < 0) || !is_first)
                continue;
        }
        Py_ssize_t held_before = PySet_GET_SIZE(held), busy_before = PyDict_GET_SIZE(busy);
        if (counts[row] >= splitting) {
            int is_held = PySet_Contains(held, offset);
            int is_busy = key == NULL || is_held ? 0 : PyDict_Contains(busy, key);
            if ((failed = is_held < 0 || is_busy < 0) || !(is_held || is_busy))
                break;
            continue;
        }
        if (key != NULL && ((failed = PyDict_SetDefault(busy, key, one) == NULL) ||
                            PyDict_GET_SIZE(busy) == busy_before))
            continue; /* Another one of its key is at a member. */
        failed = PySet_Add(held, offset) < 0;
        if (!failed && PySet_GET_SIZE(held) == held_before) {
            failed = key != NULL && PyDict_DelItem(busy, key) < 0;
            continue;
        }
        failed = PyList_Append(chosen, offset) < 0;
        records--;
    }
    Py_XDECREF(one);
    PyBuffer_Release(&firsts_view);
    PyBuffer_Release(&states_view);
    PyBuffer_Release(&counts_view);
    return failed ? NULL : PyLong_FromSsize_t(at);
}

/* heapq.heappush for offsets, which are all below 2^63. */
static int push(PyObject *heap, PyObject *offset)
{
    if (PyList_Append(heap, offset) < 0)
        return -1;
    PyObject **items = ((PyListObject *)heap)->ob_item;
    Py_ssize_t at = PyList_GET_SIZE(heap) - 1;
    long long value = PyLong_AsLongLong(offset);
    while (at > 0 && PyLong_AsLongLong(items[(at - 1) / 2]) > value) {
        items[at] = items[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    items[at] = offset;
    return PyErr_Occurred() ? -1 : 0;
}

/* Forget one offset: 0, or -1 with an error. The key of one that others wait for is `touched`. */
static int forget(PyObject *offset, PyObject *key_of, PyObject *queues, PyObject *busy,
                  PyObject *held, PyObject *touched, Py_ssize_t *fewer)
{
    int was_held = PySet_Discard(held, offset), failed = 0;
    PyObject *key = NULL, *count = NULL, *queue = NULL;
    if (was_held < 0 || pop(key_of, offset, &key) <= 0)
        return PyErr_Occurred() ? -1 : 0;
    if (was_held) {
        failed = pop(busy, key, &count) < 0;
        long left = count == NULL ? 0 : PyLong_AsLong(count) - 1;
        if (left > 0) {
            PyObject *less = PyLong_FromLong(left);
            failed = less == NULL || PyDict_SetItem(busy, key, less) < 0;
            Py_XDECREF(less);
        } else if (!failed && count == NULL) {
            PyErr_SetObject(PyExc_KeyError, key);
            failed = 1;
        }
        Py_XDECREF(count);
    }
    queue = failed ? NULL : PyDict_GetItemWithError(queues, key);
    if (queue == NULL) {
        if (!failed && !PyErr_Occurred())
            PyErr_SetObject(PyExc_KeyError, key);
        failed = 1;
    } else if (PyList_GET_SIZE(queue) == 1) {
        failed = PyDict_DelItem(queues, key) < 0;
    } else {
        Py_ssize_t size = PyList_GET_SIZE(queue), at = 0;
        while (at < size && !failed) {
            int same = PyObject_RichCompareBool(PyList_GET_ITEM(queue, at), offset, Py_EQ);
            failed = same < 0;
            if (same)
                break;
            at++;
        }
        if (!failed && at == size) {
            PyErr_SetObject(PyExc_ValueError, offset);
            failed = 1;
        }
        failed = failed || PyList_SetSlice(queue, at, at + 1, NULL) < 0 ||
                 PyDict_SetItem(touched, key, Py_None) < 0;
        *fewer += size == 2;
    }
    Py_DECREF(key);
    return failed ? -1 : 0;
}

/* end(changes, cursor, ready, key_of, queues, busy, held, firsts, states)
 * -> how many keys have one record left of several | None */
PyObject *bulk_end(PyObject *self, PyObject *args)
{
    PyObject *changes, *ready, *key_of, *queues, *busy, *held, *touched;
    Py_buffer firsts_view, states_view;
    long long cursor;
    if (!PyArg_ParseTuple(args, "O!LO!O!O!O!O!y*y*", &PyList_Type, &changes, &cursor, &PyList_Type,
                          &ready, &PyDict_Type, &key_of, &PyDict_Type, &queues, &PyDict_Type,
                          &busy, &PySet_Type, &held, &firsts_view, &states_view))
        return NULL;
    const int64_t *firsts = firsts_view.buf;
    const uint8_t *states = states_view.buf;
    Py_ssize_t rows = states_view.len, fewer = 0, size = PyList_GET_SIZE(changes);
    int failed = (touched = PyDict_New()) == NULL, other = 0;
    for (Py_ssize_t i = 0; !failed && !other && i < size; i++) {
        PyObject *change = PyList_GET_ITEM(changes, i);
        other = !PyTuple_CheckExact(change) || PyTuple_GET_SIZE(change) != 4;
        long state = other ? 0 : PyLong_AsLong(PyTuple_GET_ITEM(change, 2));
        other = other || (state != ACKNOWLEDGED && state != ARCHIVED);
    }
    for (Py_ssize_t i = 0; !failed && !other && i < size; i++) {
        PyObject *change = PyList_GET_ITEM(changes, i);
        long long offset = PyLong_AsLongLong(PyTuple_GET_ITEM(change, 0));
        long long last = PyLong_AsLongLong(PyTuple_GET_ITEM(change, 1));
        failed = PyErr_Occurred() != NULL;
        for (; !failed && offset <= last && offset < cursor; offset++) {
            PyObject *number = PyLong_FromLongLong(offset);
            failed = number == NULL ||
                     forget(number, key_of, queues, busy, held, touched, &fewer) < 0;
            Py_XDECREF(number);
        }
    }
    Py_ssize_t place_of = 0;
    PyObject *key, *unused;
    while (!failed && !other && rows && PyDict_Next(touched, &place_of, &key, &unused)) {
        PyObject *front = first_of(queues, key);
        failed = front == NULL && PyErr_Occurred();
        if (front == NULL)
            continue;
        int is_busy = PyDict_Contains(busy, key);
        long long place = PyLong_AsLongLong(front);
        failed = is_busy < 0 || (place == -1 && PyErr_Occurred());
        if (!failed && !is_busy && place >= firsts[0] &&
            states[row_of(firsts, rows, place)] == AVAILABLE)
            failed = push(ready, front) < 0;
    }
    Py_XDECREF(touched);
    PyBuffer_Release(&firsts_view);
    PyBuffer_Release(&states_view);
    if (failed)
        return NULL;
    if (other)
        Py_RETURN_NONE;
    return PyLong_FromSsize_t(fewer);
}
