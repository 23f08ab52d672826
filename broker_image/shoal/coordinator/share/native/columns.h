/* The columns of a window (`runs.OffsetRuns`) that the loops over queues read. */
#include <string.h>

typedef struct {
    Py_buffer firsts, states, counts;
    Py_ssize_t size;
} Window;

static inline int column(PyObject *runs, const char *name, Py_buffer *view)
{
    PyObject *found = PyObject_GetAttrString(runs, name);
    int failed = found == NULL || PyObject_GetBuffer(found, view, PyBUF_SIMPLE) < 0;
    Py_XDECREF(found);
    if (failed)
        view->obj = NULL;
    return failed ? -1 : 0;
}

static inline void window_close(Window *window)
{
    PyBuffer_Release(&window->firsts);
    PyBuffer_Release(&window->states);
    PyBuffer_Release(&window->counts);
}

static inline int window_open(PyObject *runs, Window *window)
{
    memset(window, 0, sizeof(Window));
    if (column(runs, "firsts", &window->firsts) < 0 || column(runs, "states", &window->states) < 0 ||
        column(runs, "counts", &window->counts) < 0) {
        window_close(window);
        return -1;
    }
    window->size = window->states.len;
    if (window->counts.len != window->size || window->firsts.len != window->size * 8) {
        window_close(window);
        PyErr_SetString(PyExc_ValueError, "columns of one length");
        return -1;
    }
    return 0;
}

/* The run of an offset, often a little behind that of the last one; -1 below the window. */
static inline Py_ssize_t window_run(const Window *window, int64_t offset, Py_ssize_t run)
{
    const int64_t *firsts = window->firsts.buf;
    if (run < 0 || firsts[run] > offset)
        return run_of(firsts, window->size, offset);
    Py_ssize_t step = 1;
    for (; run + step < window->size && firsts[run + step] <= offset; step *= 2)
        run += step;
    Py_ssize_t past = run + step < window->size ? run + step : window->size;
    return run + run_of(firsts + run, past - run, offset);
}

/* Return 1 and the bounds of a change that ends records, 0 for another change, -1 with an error. */
static inline int bounds(PyObject *change, int64_t *first, int64_t *last)
{
    int64_t state;
    if (!PyTuple_CheckExact(change) || PyTuple_GET_SIZE(change) != 4)
        return 0;
    if (number_of(PyTuple_GET_ITEM(change, 0), first) < 0 ||
        number_of(PyTuple_GET_ITEM(change, 1), last) < 0 ||
        number_of(PyTuple_GET_ITEM(change, 2), &state) < 0)
        return -1;
    return state == ACKNOWLEDGED || state == ARCHIVED;
}

/* Return whether all changes end records, so that nothing is done for a part of them; -1 with an
 * error. */
static inline int all_end(PyObject *changes)
{
    int64_t first, last;
    int ends = PyList_CheckExact(changes);
    for (Py_ssize_t i = 0; ends > 0 && i < PyList_GET_SIZE(changes); i++)
        ends = bounds(PyList_GET_ITEM(changes, i), &first, &last);
    return ends;
}
