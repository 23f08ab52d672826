/* The type `KeyQueues`: its methods for single records, and its properties. */
#include "key_state.h"

static PyObject *queues_new(PyTypeObject *type, PyObject *args, PyObject *words)
{
    if (!PyArg_ParseTuple(args, "") || (words != NULL && PyDict_GET_SIZE(words)))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "there are no settings");
    Queues *self = (Queues *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->records = self->keys = TABLE_EMPTY;
    return (PyObject *)self;
}

static void queues_dealloc(Queues *self)
{
    table_clear(&self->records);
    table_clear(&self->keys);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *queues_sizeof(Queues *self, PyObject *unused)
{
    return PyLong_FromSize_t(sizeof(Queues) + table_bytes(&self->records, sizeof(Record)) +
                             table_bytes(&self->keys, sizeof(Key)));
}

static PyObject *get_records(Queues *self, void *unused)
{
    return PyLong_FromSsize_t(self->keyed);
}

static PyObject *get_keys(Queues *self, void *unused)
{
    return PyLong_FromUnsignedLong(self->keys.count);
}

static PyObject *get_waiting(Queues *self, void *unused)
{
    return PyLong_FromSsize_t(self->waiting);
}

static PyObject *get_waiting_records(Queues *self, void *unused)
{
    return PyLong_FromSsize_t(self->keyed - self->keys.count - (self->reserved - self->busy));
}

static PyObject *queues_key_of(Queues *self, PyObject *argument)
{
    int64_t offset;
    if (number_of(argument, &offset) < 0)
        return NULL;
    uint32_t place = find(self, offset);
    if (place == NONE || RECORD(place)->key == NONE)
        Py_RETURN_NONE;
    return PyLong_FromLongLong(KEY(RECORD(place)->key)->item.number);
}

static PyObject *queues_is_reserved(Queues *self, PyObject *argument)
{
    int64_t offset;
    if (number_of(argument, &offset) < 0)
        return NULL;
    uint32_t place = find(self, offset);
    return PyBool_FromLong(place != NONE && RECORD(place)->reserved);
}

static PyObject *queues_is_free(Queues *self, PyObject *argument)
{
    int64_t offset;
    if (number_of(argument, &offset) < 0)
        return NULL;
    uint32_t place = find(self, offset);
    uint32_t key = place == NONE ? NONE : RECORD(place)->key;
    return PyBool_FromLong(key == NONE || (!KEY(key)->busy && KEY(key)->first == place));
}

static PyObject *queues_first_of(Queues *self, PyObject *argument)
{
    int64_t hash;
    if (number_of(argument, &hash) < 0)
        return NULL;
    uint32_t key = table_find(&self->keys, sizeof(Key), hash);
    if (key == NONE || KEY(key)->busy)
        Py_RETURN_NONE;
    return PyLong_FromLongLong(RECORD(KEY(key)->first)->item.number);
}

static PyObject *queues_followers(Queues *self, PyObject *args)
{
    int64_t offset;
    PyObject *first;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(args, "On", &first, &count) || number_of(first, &offset) < 0)
        return NULL;
    PyObject *found = PyList_New(0);
    uint32_t place = find(self, offset);
    if (place == NONE || RECORD(place)->key == NONE)
        return found;
    place = RECORD(KEY(RECORD(place)->key)->first)->behind;
    for (; found != NULL && count > 0 && place != NONE; count--, place = RECORD(place)->behind)
        if (append(found, RECORD(place)->item.number) < 0)
            Py_CLEAR(found);
    return found;
}

static PyObject *queues_put(Queues *self, PyObject *args)
{
    PyObject *first, *key;
    int64_t offset, hash;
    if (!PyArg_ParseTuple(args, "OO", &first, &key) || number_of(first, &offset) < 0 ||
        number_of(key, &hash) < 0 || check_behind(self, offset) < 0)
        return NULL;
    if (!hash)
        return PyErr_Format(PyExc_ValueError, "a key is not 0");
    int is_first = put(self, offset, hash);
    return is_first < 0 ? NULL : PyBool_FromLong(is_first);
}

static PyObject *queues_reserve(Queues *self, PyObject *argument)
{
    int64_t offset;
    if (number_of(argument, &offset) < 0 || reserve(self, offset, find(self, offset)) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *queues_release(Queues *self, PyObject *argument)
{
    int64_t offset;
    if (number_of(argument, &offset) < 0)
        return NULL;
    uint32_t place = find(self, offset);
    if (place == NONE)
        Py_RETURN_NONE;
    let_go(self, RECORD(place));
    if (RECORD(place)->key != NONE)
        return PyLong_FromLongLong(KEY(RECORD(place)->key)->item.number);
    forget(self, place);
    tidy(self);
    Py_RETURN_NONE;
}

/* Copy the offsets of an iterable into memory that the caller frees. Return their number, or -1
 * with an error. */
static Py_ssize_t offsets_of(PyObject *given, int64_t **offsets)
{
    PyObject *list = PySequence_List(given);
    Py_ssize_t size = list == NULL ? 0 : PyList_GET_SIZE(list), i = 0;
    *offsets = list == NULL ? NULL : PyMem_Malloc((size + 1) * sizeof(int64_t));
    if (list != NULL && *offsets == NULL)
        PyErr_NoMemory();
    while (*offsets != NULL && i < size && number_of(PyList_GET_ITEM(list, i), *offsets + i) == 0)
        i++;
    Py_XDECREF(list);
    if (!PyErr_Occurred())
        return size;
    PyMem_Free(*offsets);
    return -1;
}

/* Remove records, if they are known. Return 0, or -1 with an error. */
static int forget_all(Queues *self, const int64_t *offsets, Py_ssize_t size, PyObject *touched)
{
    int failed = 0;
    for (Py_ssize_t i = 0; !failed && i < size; i++) {
        uint32_t place = find(self, offsets[i]), key = place == NONE ? NONE : forget(self, place);
        if (key == NONE)
            continue;
        PyObject *hash = PyLong_FromLongLong(KEY(key)->item.number);
        failed = hash == NULL || PyDict_SetItem(touched, hash, Py_None) < 0;
        Py_XDECREF(hash);
    }
    tidy(self);
    return failed ? -1 : 0;
}

/* end(offsets, touched) */
static PyObject *queues_end(Queues *self, PyObject *args)
{
    PyObject *given, *touched;
    int64_t *offsets;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "OO!", &given, &PyDict_Type, &touched) ||
        (size = offsets_of(given, &offsets)) < 0)
        return NULL;
    int failed = forget_all(self, offsets, size, touched);
    PyMem_Free(offsets);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

static int by_number(const void *one, const void *other)
{
    int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
    return a < b ? -1 : a > b;
}

/* start_moved(start, touched) */
static PyObject *queues_start_moved(Queues *self, PyObject *args)
{
    PyObject *from, *touched;
    int64_t start;
    Py_ssize_t size = 0;
    if (!PyArg_ParseTuple(args, "OO!", &from, &PyDict_Type, &touched) ||
        number_of(from, &start) < 0)
        return NULL;
    int64_t *offsets = PyMem_Malloc((self->records.count + 1) * sizeof(int64_t));
    if (offsets == NULL)
        return PyErr_NoMemory();
    for (uint32_t place = 0; place < self->records.used; place++) {
        int64_t offset = RECORD(place)->item.number;
        if (offset < start && find(self, offset) == place) /* Others are free. */
            offsets[size++] = offset;
    }
    qsort(offsets, size, sizeof(int64_t), by_number);
    int failed = forget_all(self, offsets, size, touched);
    PyMem_Free(offsets);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

/* waiting_behind(offsets) */
static PyObject *queues_waiting_behind(Queues *self, PyObject *given)
{
    int64_t *offsets;
    Py_ssize_t size = offsets_of(given, &offsets), waiting = 0;
    uint32_t head = NONE;
    if (size < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < size; i++) {
        uint32_t place = find(self, offsets[i]);
        if (place == NONE || RECORD(place)->key == NONE)
            continue;
        head = touch(self, RECORD(place)->key, head);
        waiting--;
    }
    PyMem_Free(offsets);
    for (; head != NONE; head = KEY(head)->next) {
        KEY(head)->touched = 0;
        waiting += (Py_ssize_t)KEY(head)->size - KEY(head)->busy;
    }
    return PyLong_FromSsize_t(waiting);
}

#define METHOD(name, kind) {#name, (PyCFunction)(void (*)(void))queues_##name, kind, NULL}

static PyMethodDef methods[] = {
    METHOD(key_of, METH_O),
    METHOD(is_reserved, METH_O),
    METHOD(is_free, METH_O),
    METHOD(first_of, METH_O),
    METHOD(followers, METH_VARARGS),
    METHOD(waiting_behind, METH_O),
    METHOD(put, METH_VARARGS),
    METHOD(put_new, METH_VARARGS),
    METHOD(reserve, METH_O),
    METHOD(release, METH_O),
    METHOD(choose, METH_VARARGS),
    METHOD(end, METH_VARARGS),
    METHOD(end_all, METH_VARARGS),
    METHOD(start_moved, METH_VARARGS),
    {"__sizeof__", (PyCFunction)queues_sizeof, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

#define FACT(name) {#name, (getter)get_##name, NULL, NULL, NULL}

static PyGetSetDef facts[] = {
    FACT(records), FACT(keys), FACT(waiting), FACT(waiting_records), {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject key_queues_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "_share_native.KeyQueues",
    .tp_basicsize = sizeof(Queues),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = queues_new,
    .tp_dealloc = (destructor)queues_dealloc,
    .tp_methods = methods,
    .tp_getset = facts,
};
