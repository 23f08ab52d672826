/* Loops of `KeyQueues` over many records: add, choose and end. */
#include "key_state.h"
#include "columns.h"

PyObject *queues_put_new(Queues *self, PyObject *args)
{
    PyObject *from, *available;
    Py_buffer keys;
    int64_t first, hash;
    int failed = 0;
    if (!PyArg_ParseTuple(args, "Oy*O!", &from, &keys, &PyList_Type, &available))
        return NULL;
    Py_ssize_t count = keys.len / 8;
    failed = number_of(from, &first) < 0 || check_behind(self, first) < 0;
    if (!failed && (keys.len % 8 || count > INT64_MAX - first)) {
        PyErr_SetString(PyExc_ValueError, "keys and offsets have 64 bits");
        failed = 1;
    }
    for (Py_ssize_t i = 0; !failed && i < count; i++) {
        memcpy(&hash, (char *)keys.buf + 8 * i, 8);
        int is_available = hash ? put(self, first + i, hash) : 1;
        failed = is_available < 0 || (is_available && append(available, first + i) < 0);
        self->end = first + i + 1;
    }
    PyBuffer_Release(&keys);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

/* choose(available, runs, records, splitting, chosen) */
PyObject *queues_choose(Queues *self, PyObject *args)
{
    PyObject *available, *runs, *chosen;
    Py_ssize_t records, at = 0, run = -1;
    int splitting, failed = 0;
    Window window;
    if (!PyArg_ParseTuple(args, "O!OniO!", &PyList_Type, &available, &runs, &records, &splitting,
                          &PyList_Type, &chosen))
        return NULL;
    if (records <= 0 || PyList_GET_SIZE(available) / SORTED_MAX > records)
        Py_RETURN_NONE;
    if (PyList_Sort(available) < 0 || window_open(runs, &window) < 0)
        return NULL;
    const uint8_t *states = window.states.buf, *counts = window.counts.buf;
    for (; window.size && at < PyList_GET_SIZE(available) && records > 0; at++) {
        PyObject *number = PyList_GET_ITEM(available, at);
        int64_t offset;
        if ((failed = number_of(number, &offset)) < 0)
            break;
        if ((run = window_run(&window, offset, run)) < 0 || states[run] != AVAILABLE)
            continue;
        uint32_t place = find(self, offset), key = place == NONE ? NONE : RECORD(place)->key;
        if (place != NONE && RECORD(place)->reserved)
            continue;
        if (key != NONE && (KEY(key)->first != place || KEY(key)->busy))
            continue; /* An earlier record of its key is incomplete, or its key is reserved. */
        if (counts[run] >= splitting)
            break;
        if ((failed = reserve(self, offset, place)) < 0 ||
            (failed = PyList_Append(chosen, number)) < 0)
            break;
        records--;
    }
    window_close(&window);
    if (failed || PyList_SetSlice(available, 0, at, NULL) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* heapq.heappush for offsets, which are all below 2^63. */
static int push(PyObject *heap, int64_t value)
{
    if (append(heap, value) < 0)
        return -1;
    PyObject **items = ((PyListObject *)heap)->ob_item;
    Py_ssize_t at = PyList_GET_SIZE(heap) - 1;
    PyObject *offset = items[at];
    int64_t above;
    for (; at > 0; at = (at - 1) / 2) {
        if (number_of(items[(at - 1) / 2], &above) < 0 || above <= value)
            break;
        items[at] = items[(at - 1) / 2];
    }
    items[at] = offset;
    return PyErr_Occurred() ? -1 : 0;
}

/* end_all(changes, below, available, runs) */
PyObject *queues_end_all(Queues *self, PyObject *args)
{
    PyObject *changes, *available, *runs;
    long long below;
    int64_t offset, last;
    Window window;
    if (!PyArg_ParseTuple(args, "OLO!O", &changes, &below, &PyList_Type, &available, &runs))
        return NULL;
    int ends = all_end(changes);
    if (ends <= 0)
        return ends < 0 ? NULL : PyBool_FromLong(0);
    if (window_open(runs, &window) < 0)
        return NULL;
    uint32_t head = NONE;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(changes); i++) {
        bounds(PyList_GET_ITEM(changes, i), &offset, &last);
        for (; offset <= last && offset < below; offset++) {
            uint32_t place = find(self, offset);
            if (place != NONE)
                head = touch(self, forget(self, place), head);
        }
    }
    const uint8_t *states = window.states.buf;
    int failed = 0;
    for (Py_ssize_t run = -1; head != NONE; head = KEY(head)->next) {
        Key *key = KEY(head);
        key->touched = 0;
        if (failed || !window.size || !key->size || key->busy)
            continue;
        offset = RECORD(key->first)->item.number;
        run = window_run(&window, offset, run);
        if (run >= 0 && states[run] == AVAILABLE)
            failed = push(available, offset) < 0;
    }
    window_close(&window);
    tidy(self);
    return failed ? NULL : PyBool_FromLong(1);
}
