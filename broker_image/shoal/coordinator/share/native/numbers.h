/* Exact Python ints as C numbers, so that no Python code runs while the loops use their memory. */

/* An exact int of 64 bits: 0, or -1 with an error. */
static inline int number_of(PyObject *object, int64_t *number)
{
    if (!PyLong_CheckExact(object)) {
        PyErr_SetString(PyExc_TypeError, "offsets and keys are ints");
        return -1;
    }
    *number = PyLong_AsLongLong(object);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

static inline int append(PyObject *list, int64_t number)
{
    PyObject *object = PyLong_FromLongLong(number);
    int failed = object == NULL || PyList_Append(list, object) < 0;
    Py_XDECREF(object);
    return failed ? -1 : 0;
}
