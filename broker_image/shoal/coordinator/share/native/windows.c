/* Changes of many ranges of a window in one pass (`Runs.rewrite`, `bulk.py`). The window's five
 * columns are read through the buffer protocol. New runs are returned as bytes, since C cannot
 * resize the columns. */
#include "bulk.h"
#include <string.h>

typedef struct {
    Py_buffer views[5];
    const int64_t *firsts;
    const uint8_t *states, *counts;
    const uint32_t *locks, *pieces;
    Py_ssize_t size;
    int64_t end;
} Window;

/* The new runs for runs `begin` to `past`. */
typedef struct {
    int64_t *firsts;
    uint8_t *states, *counts;
    uint32_t *locks, *pieces;
    Py_ssize_t size, begin;
} NewRuns;

static void put(NewRuns *made, const Window *window, int64_t first, uint8_t state, uint8_t count,
                uint32_t lock, uint32_t piece)
{
    Py_ssize_t n = made->size, before = made->begin - 1;
    if (n ? made->states[n - 1] == state && made->counts[n - 1] == count &&
                made->locks[n - 1] == lock && made->pieces[n - 1] == piece
          : before >= 0 && window->states[before] == state && window->counts[before] == count &&
                window->locks[before] == lock && window->pieces[before] == piece)
        return;
    made->firsts[n] = first;
    made->states[n] = state;
    made->counts[n] = count;
    made->locks[n] = lock;
    made->pieces[n] = piece;
    made->size++;
}

static void keep(NewRuns *made, const Window *window, int64_t first, Py_ssize_t run)
{
    put(made, window, first, window->states[run], window->counts[run], window->locks[run],
        window->pieces[run]);
}

static int64_t past_of(const Window *window, Py_ssize_t run)
{
    return run + 1 < window->size ? window->firsts[run + 1] : window->end;
}

/* The run of an offset that is not below that of `run`, which is near. */
static Py_ssize_t run_from(const Window *window, Py_ssize_t run, int64_t offset)
{
    Py_ssize_t step = 1;
    while (run + step < window->size && window->firsts[run + step] <= offset) {
        run += step;
        step *= 2;
    }
    Py_ssize_t past = run + step < window->size ? run + step : window->size;
    while (past - run > 1) {
        Py_ssize_t middle = (run + past) / 2;
        if (window->firsts[middle] <= offset)
            run = middle;
        else
            past = middle;
    }
    return run;
}

/* Add runs as they are. The first differs from the last added one. */
static void keep_all(NewRuns *made, const Window *window, Py_ssize_t run, Py_ssize_t past)
{
    Py_ssize_t n = made->size, count = past - run;
    memcpy(made->firsts + n, window->firsts + run, count * sizeof(int64_t));
    memcpy(made->states + n, window->states + run, count);
    memcpy(made->counts + n, window->counts + run, count);
    memcpy(made->locks + n, window->locks + run, count * sizeof(uint32_t));
    memcpy(made->pieces + n, window->pieces + run, count * sizeof(uint32_t));
    made->size += count;
}

/* The number of records that each lock gives back. */
typedef struct {
    uint32_t numbers[64];
    long long records[64];
    int size;
} Returned;

static int give_back(Returned *returned, uint32_t number, long long records)
{
    int at = 0;
    while (at < returned->size && returned->numbers[at] != number)
        at++;
    if (at == 64)
        return -1;
    if (at == returned->size) {
        returned->numbers[at] = number;
        returned->records[at] = 0;
        returned->size++;
    }
    returned->records[at] += records;
    return 0;
}

enum { LOCK, ACCEPT_ALL, OVERWRITE };

static int all_accepted(PyObject *types)
{
    if (!PyBytes_Check(types) || !PyBytes_GET_SIZE(types))
        return 0;
    for (Py_ssize_t i = 0; i < PyBytes_GET_SIZE(types); i++)
        if (PyBytes_AS_STRING(types)[i] != ACCEPT)
            return 0;
    return 1;
}

/* Return 1 and the bounds of an edit that begins behind `before` and ends in the window, else 0. */
static int bounds(PyObject *edit, Py_ssize_t fields, int64_t before, const Window *window,
                  int64_t *first, int64_t *last)
{
    if (!PyTuple_Check(edit) || PyTuple_GET_SIZE(edit) < fields)
        return 0;
    *first = PyLong_AsLongLong(PyTuple_GET_ITEM(edit, 0));
    *last = PyLong_AsLongLong(PyTuple_GET_ITEM(edit, 1));
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return before < *first && *first <= *last && *last < window->end;
}

/* Apply the edits. Return the run behind the last changed one, or 0 if an edit does not apply. */
static Py_ssize_t go_over(const Window *window, PyObject *edits, int kind, uint32_t number,
                          NewRuns *made, Returned *returned)
{
    Py_ssize_t run = made->begin;
    int64_t at = window->firsts[run], before = window->firsts[0] - 1, first, last;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(edits); i++) {
        PyObject *edit = PyList_GET_ITEM(edits, i);
        long state = ACQUIRED, count = 1;
        if (!bounds(edit, kind == LOCK ? 2 : kind == OVERWRITE ? 4 : 3, before, window, &first, &last))
            return 0;
        if (kind == ACCEPT_ALL && !all_accepted(PyTuple_GET_ITEM(edit, 2)))
            return 0;
        if (kind == OVERWRITE) {
            state = PyLong_AsLong(PyTuple_GET_ITEM(edit, 2));
            count = PyLong_AsLong(PyTuple_GET_ITEM(edit, 3));
            if (PyErr_Occurred() || state < 0 || state > 255 || count < 0) {
                PyErr_Clear();
                return 0;
            }
            count = count < COUNT_MAX ? count : COUNT_MAX;
        }
        if (past_of(window, run) <= first) {
            Py_ssize_t next = run_from(window, run + 1, first);
            keep(made, window, at, run);
            keep_all(made, window, run + 1, next);
            run = next;
            at = window->firsts[run];
        }
        if (at < first)
            keep(made, window, at, run);
        at = first;
        while (at <= last) {
            int64_t past = past_of(window, run), high = last < past ? last : past - 1;
            if (kind == LOCK) {
                if (window->states[run] != AVAILABLE || window->counts[run])
                    return 0;
                put(made, window, at, ACQUIRED, 1, number, 0);
            } else if (kind == ACCEPT_ALL) {
                if (window->states[run] != ACQUIRED ||
                    give_back(returned, window->locks[run], high - at + 1) < 0)
                    return 0;
                put(made, window, at, ACKNOWLEDGED, window->counts[run], 0, 0);
            } else {
                put(made, window, at, (uint8_t)state, (uint8_t)count, 0, 0);
            }
            at = high + 1;
            if (at == past)
                run++;
        }
        before = last;
    }
    if (run < window->size) /* The rest of the last run, or the one behind it, which may join. */
        keep(made, window, at, run++);
    return run;
}

/* Return the changes of accepted ranges, with neighbours joined. */
static PyObject *accepted(const Window *window, PyObject *edits, Py_ssize_t run)
{
    PyObject *changes = PyList_New(0);
    int64_t begin = 0, end = -1, first, last, before = window->firsts[0] - 1;
    int count = -1;
    for (Py_ssize_t i = 0; changes != NULL && i <= PyList_GET_SIZE(edits); i++) {
        int is_last = i == PyList_GET_SIZE(edits);
        if (is_last)
            first = last = INT64_MAX;
        else
            bounds(PyList_GET_ITEM(edits, i), 3, before, window, &first, &last);
        while (first <= last) {
            if (!is_last)
                run = run_from(window, run, first);
            if (is_last || first != end + 1 || window->counts[run] != count) {
                if (count >= 0) {
                    PyObject *change = Py_BuildValue("(LLii)", (long long)begin, (long long)end,
                                                     ACKNOWLEDGED, count);
                    if (change == NULL || PyList_Append(changes, change) < 0)
                        Py_CLEAR(changes);
                    Py_XDECREF(change);
                }
                if (is_last || changes == NULL)
                    break;
                begin = first;
                count = window->counts[run];
            }
            int64_t past = past_of(window, run);
            end = last < past ? last : past - 1;
            first = end + 1;
        }
        before = last;
    }
    return changes;
}

/* rewrite(columns, end, edits, kind, number)
 * -> ((begin, past, five columns as bytes), changes, {lock: records}) | None */
PyObject *bulk_rewrite(PyObject *self, PyObject *args)
{
    PyObject *columns, *edits, *answer = NULL;
    long long window_end;
    int kind;
    unsigned int number;
    if (!PyArg_ParseTuple(args, "O!LO!iI", &PyTuple_Type, &columns, &window_end, &PyList_Type,
                          &edits, &kind, &number))
        return NULL;
    Window window = {.end = window_end};
    Py_ssize_t taken = 0;
    char *memory = NULL;
    int none = 1;
    while (taken < 5 && taken < PyTuple_GET_SIZE(columns)) {
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(columns, taken), &window.views[taken], 0) < 0)
            goto done;
        taken++;
    }
    window.firsts = window.views[0].buf;
    window.states = window.views[1].buf;
    window.counts = window.views[2].buf;
    window.locks = window.views[3].buf;
    window.pieces = window.views[4].buf;
    window.size = window.views[1].len;
    Py_ssize_t size = PyList_GET_SIZE(edits);
    int64_t first, last;
    if (taken < 5 || !window.size || !size)
        goto done;
    if (!bounds(PyList_GET_ITEM(edits, 0), 2, window.firsts[0] - 1, &window, &first, &last))
        goto done;
    NewRuns made = {.begin = run_of(window.firsts, window.size, first)};
    int64_t unused;
    if (!bounds(PyList_GET_ITEM(edits, size - 1), 2, window.firsts[0] - 1, &window, &unused, &last))
        goto done;
    /* At most the present runs, and two more for each edit. */
    Py_ssize_t room = run_of(window.firsts, window.size, last) - made.begin + 2 * size + 4;
    memory = PyMem_Malloc(room * (8 + 4 + 4 + 1 + 1));
    if (memory == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    made.firsts = (int64_t *)memory;
    made.locks = (uint32_t *)(made.firsts + room);
    made.pieces = made.locks + room;
    made.states = (uint8_t *)(made.pieces + room);
    made.counts = made.states + room;
    Returned returned = {.size = 0};
    Py_ssize_t past = go_over(&window, edits, kind, number, &made, &returned);
    if (!past)
        goto done;
    none = 0;
    PyObject *given = PyDict_New();
    PyObject *changes = kind == ACCEPT_ALL ? accepted(&window, edits, made.begin) : PyList_New(0);
    for (int i = 0; given != NULL && i < returned.size; i++) {
        PyObject *key = PyLong_FromUnsignedLong(returned.numbers[i]);
        PyObject *value = PyLong_FromLongLong(returned.records[i]);
        if (key == NULL || value == NULL || PyDict_SetItem(given, key, value) < 0)
            Py_CLEAR(given);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    if (given != NULL && changes != NULL) {
        Py_ssize_t n = made.size;
        answer = Py_BuildValue("((nny#y#y#y#y#)OO)", made.begin, past, made.firsts, n * 8,
                               made.states, n, made.counts, n, made.locks, n * 4, made.pieces,
                               n * 4, changes, given);
    }
    Py_XDECREF(given);
    Py_XDECREF(changes);
done:
    PyMem_Free(memory);
    while (taken > 0)
        PyBuffer_Release(&window.views[--taken]);
    if (answer == NULL && none && !PyErr_Occurred())
        Py_RETURN_NONE;
    return answer;
}
