/* Changes of many ranges of a window in one pass (`Runs.rewrite`, `bulk.py`), in place. The window's
 * five columns are read and written through the buffer protocol, and resized between. */
#include "share_native.h"
#include <string.h>

enum { COLUMNS = 5 };
static const Py_ssize_t widths[COLUMNS] = {8, 1, 1, 4, 4};

typedef struct {
    Py_buffer views[COLUMNS];
    int opened; /* As many of the views. */
    const int64_t *firsts;
    const uint8_t *states, *counts;
    const uint32_t *locks, *pieces;
    Py_ssize_t size;
    int64_t end;
} Window;

/* Runs between two edits that are not worth a separate stretch. */
enum { NEAR_RUNS = 16 };

/* A part of the window that is rewritten: `size` new runs take the place of runs `begin` to
 * `past`. */
typedef struct {
    Py_ssize_t begin, past, size;
} Stretch;

/* The new runs of all stretches, one after the other. */
typedef struct {
    int64_t *firsts;
    uint8_t *states, *counts;
    uint32_t *locks, *pieces;
    Py_ssize_t size;
    Stretch *stretches, *stretch; /* The first one, and the last one, which is open. */
} NewRuns;

static void put(NewRuns *made, const Window *window, int64_t first, uint8_t state, uint8_t count,
                uint32_t lock, uint32_t piece)
{
    Py_ssize_t n = made->size, before = made->stretch->begin - 1;
    if (made->stretch->size ? made->states[n - 1] == state && made->counts[n - 1] == count &&
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
    made->stretch->size++;
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
    made->stretch->size += count;
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

/* Make the new runs. Return 1, or 0 if an edit does not apply. */
static int go_over(const Window *window, PyObject *edits, int kind, uint32_t number, NewRuns *made,
                   Returned *returned)
{
    Py_ssize_t run = made->stretch->begin;
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
            if (next - run > NEAR_RUNS) {
                made->stretch->past = run + 1;
                *++made->stretch = (Stretch){.begin = next};
            } else {
                keep_all(made, window, run + 1, next);
            }
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
    made->stretch->past = run;
    return 1;
}

/* Add a state batch to a list, twice as fast as by `Py_BuildValue`. Return 0, or -1 with an error. */
static int append_batch(PyObject *list, int64_t first, int64_t last, int state, int count)
{
    const long long numbers[4] = {first, last, state, count};
    PyObject *made = PyTuple_New(4);
    for (int i = 0; made != NULL && i < 4; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (number == NULL)
            Py_CLEAR(made);
        else
            PyTuple_SET_ITEM(made, i, number);
    }
    int failed = made == NULL || PyList_Append(list, made) < 0;
    Py_XDECREF(made);
    return failed ? -1 : 0;
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
                if (count >= 0 && append_batch(changes, begin, end, ACKNOWLEDGED, count) < 0)
                    Py_CLEAR(changes);
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

static void close_columns(Window *window)
{
    while (window->opened > 0)
        PyBuffer_Release(&window->views[--window->opened]);
}

/* Return 1; 0 for something else than columns of one length, or -1 with an error. */
static int open_columns(PyObject *columns, Window *window)
{
    int fits = PyTuple_GET_SIZE(columns) == COLUMNS;
    while (fits && window->opened < COLUMNS) {
        Py_buffer *view = &window->views[window->opened];
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(columns, window->opened), view, PyBUF_WRITABLE) < 0) {
            close_columns(window);
            return -1;
        }
        window->opened++;
    }
    for (int i = 0; fits && i < COLUMNS; i++)
        fits = window->views[i].len == window->views[1].len * widths[i];
    if (!fits) {
        close_columns(window);
        return 0;
    }
    window->firsts = window->views[0].buf;
    window->states = window->views[1].buf;
    window->counts = window->views[2].buf;
    window->locks = window->views[3].buf;
    window->pieces = window->views[4].buf;
    window->size = window->views[1].len;
    return 1;
}

/* Resize the columns from `from` to `to` runs. Return 0, or -1 with an error. */
static int resize(PyObject *columns, Py_ssize_t from, Py_ssize_t to)
{
    int failed = 0, grown = 0;
    for (; !failed && from < to && grown < COLUMNS; grown++) {
        PyObject *column = PyTuple_GET_ITEM(columns, grown), *done = NULL;
        PyObject *more = PyByteArray_FromStringAndSize(NULL, (to - from) * widths[grown]);
        if (more != NULL)
            done = PyObject_CallMethod(column, PyByteArray_Check(column) ? "extend" : "frombytes",
                                       "O", more);
        Py_XDECREF(more);
        Py_XDECREF(done);
        failed = done == NULL;
    }
    if (failed) { /* Those before the one that has failed are longer now. */
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        for (int i = 0; i < grown - 1; i++)
            PySequence_DelSlice(PyTuple_GET_ITEM(columns, i), from, to);
        PyErr_Restore(type, value, traceback);
    }
    for (int i = 0; to < from && i < COLUMNS; i++)
        failed |= PySequence_DelSlice(PyTuple_GET_ITEM(columns, i), to, from) < 0;
    return failed ? -1 : 0;
}

/* Put the new runs of one column, each `width` bytes wide, in their places among `size` old ones.
 * Runs between two stretches move as a block. Those that move down go first, from the left, then
 * those that move up, from the right: so no block covers one that has not moved. */
static void put_column(uint8_t *column, Py_ssize_t width, Py_ssize_t size, const NewRuns *made,
                       const uint8_t *new)
{
    Py_ssize_t shift = 0;
    const Stretch *stretches = made->stretches;
    for (const Stretch *one = stretches; one <= made->stretch; one++) {
        Py_ssize_t past = one < made->stretch ? one[1].begin : size;
        shift += one->size - (one->past - one->begin);
        if (shift < 0)
            memmove(column + (one->past + shift) * width, column + one->past * width,
                    (past - one->past) * width);
    }
    new += made->size * width;
    for (const Stretch *one = made->stretch; one >= stretches; one--) {
        Py_ssize_t past = one < made->stretch ? one[1].begin : size;
        if (shift > 0)
            memmove(column + (one->past + shift) * width, column + one->past * width,
                    (past - one->past) * width);
        shift -= one->size - (one->past - one->begin);
        new -= one->size * width;
        memcpy(column + (one->begin + shift) * width, new, one->size * width);
    }
}

/* Put the new runs in their places. Return 0, or -1 with an error and the columns as they were. */
static int put_runs(PyObject *columns, Window *window, const NewRuns *made)
{
    Py_ssize_t size = window->size, growth = made->size;
    const void *new[COLUMNS] = {made->firsts, made->states, made->counts, made->locks, made->pieces};
    for (const Stretch *one = made->stretches; one <= made->stretch; one++)
        growth -= one->past - one->begin;
    if (growth > 0) {
        close_columns(window);
        if (resize(columns, size, size + growth) < 0)
            return -1;
        if (open_columns(columns, window) < 1)
            return resize(columns, size + growth, size), -1;
    }
    for (int i = 0; i < COLUMNS; i++)
        put_column(window->views[i].buf, widths[i], size, made, new[i]);
    close_columns(window);
    return growth < 0 ? resize(columns, size, size + growth) : 0;
}

/* Return {lock: records}, or NULL with an error. */
static PyObject *records_of(const Returned *returned)
{
    PyObject *records = PyDict_New();
    for (int i = 0; records != NULL && i < returned->size; i++) {
        PyObject *key = PyLong_FromUnsignedLong(returned->numbers[i]);
        PyObject *value = PyLong_FromLongLong(returned->records[i]);
        if (key == NULL || value == NULL || PyDict_SetItem(records, key, value) < 0)
            Py_CLEAR(records);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return records;
}

/* Return 1 if `may_change` is true of all locks, else 0, or -1 with an error. */
static int may_change_all(PyObject *may_change, const Returned *returned)
{
    int may = 1;
    for (int i = 0; may > 0 && i < returned->size; i++) {
        PyObject *answer = PyObject_CallFunction(may_change, "I", returned->numbers[i]);
        may = answer == NULL ? -1 : PyObject_IsTrue(answer);
        Py_XDECREF(answer);
    }
    return may;
}

/* Apply the edits. Return the answer, or NULL: with an error, or if an edit does not apply. */
static PyObject *rewrite(PyObject *columns, Window *window, PyObject *edits, int kind,
                         uint32_t number, PyObject *may_change, NewRuns *made)
{
    Returned returned = {.size = 0};
    Py_ssize_t begin = made->stretch->begin;
    if (!go_over(window, edits, kind, number, made, &returned) ||
        may_change_all(may_change, &returned) < 1)
        return NULL;
    PyObject *changes = kind == ACCEPT_ALL ? accepted(window, edits, begin) : PyList_New(0);
    PyObject *records = changes == NULL ? NULL : records_of(&returned);
    if (records != NULL && put_runs(columns, window, made) < 0)
        Py_CLEAR(records);
    PyObject *answer = records == NULL ? NULL : PyTuple_Pack(2, changes, records);
    Py_XDECREF(changes);
    Py_XDECREF(records);
    return answer;
}

/* rewrite_runs(columns, end, edits, kind, number, may_change)
 * -> (changes, {lock: records}) | None: change the columns in place, if all edits apply and
 * `may_change` is true of the lock of each accepted record. */
PyObject *bulk_rewrite_runs(PyObject *self, PyObject *args)
{
    PyObject *columns, *edits, *may_change, *answer = NULL;
    long long window_end;
    int kind, opened;
    unsigned int number;
    int64_t first, last;
    if (!PyArg_ParseTuple(args, "O!LO!iIO", &PyTuple_Type, &columns, &window_end, &PyList_Type,
                          &edits, &kind, &number, &may_change))
        return NULL;
    Window window = {.end = window_end};
    Py_ssize_t size = PyList_GET_SIZE(edits);
    if ((opened = open_columns(columns, &window)) < 0)
        return NULL;
    if (opened && window.size && size &&
        bounds(PyList_GET_ITEM(edits, 0), 2, window.firsts[0] - 1, &window, &first, &last)) {
        Py_ssize_t begin = run_of(window.firsts, window.size, first);
        /* At most the present runs, and two more for each edit. Memory is only used as far as it
         * is written to. */
        Py_ssize_t room = window.size - begin + 2 * size + 4;
        char *memory = PyMem_Malloc(room * (8 + 4 + 4 + 1 + 1) + size * sizeof(Stretch));
        if (memory == NULL) {
            PyErr_NoMemory();
        } else {
            NewRuns made = {.firsts = (int64_t *)memory};
            made.stretches = made.stretch = (Stretch *)(made.firsts + room);
            made.locks = (uint32_t *)(made.stretches + size);
            made.pieces = made.locks + room;
            made.states = (uint8_t *)(made.pieces + room);
            made.counts = made.states + room;
            *made.stretch = (Stretch){.begin = begin};
            answer = rewrite(columns, &window, edits, kind, number, may_change, &made);
            PyMem_Free(memory);
        }
    }
    close_columns(&window);
    if (answer == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return answer;
}
