/* Declarations of the module `_share_native`: the compiled loops of groups with key order (`compiled.py`).
 * Python code beside each call does the same. A function keeps no state. If it returns None, it has
 * changed nothing, and the caller uses the Python code. The type `KeyQueues` has a Python class
 * beside it; each share partition uses one of the two.  */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* As in `states.py` and `runs.py`; `tests/unit/coordinator/test_compiled.py` holds it. */
enum { AVAILABLE = 0, ACQUIRED = 1, ACKNOWLEDGED = 2, ARCHIVED = 4, ACCEPT = 1, COUNT_MAX = 255 };

/* The hash of bytes, as `hash` computes it. */
#if PY_VERSION_HEX >= 0x030E0000
#define HASH_BYTES(data, size) Py_HashBuffer(data, size)
#else
#if PY_VERSION_HEX >= 0x030D0000
/* 3.13 exports it, and declares it in no public header. */
PyAPI_FUNC(Py_hash_t) _Py_HashBytes(const void *, Py_ssize_t);
#endif
#define HASH_BYTES(data, size) _Py_HashBytes(data, size)
#endif

#define HIDDEN __attribute__((visibility("hidden")))

/* The run of an offset of the window. */
static inline Py_ssize_t run_of(const int64_t *firsts, Py_ssize_t size, int64_t offset)
{
    Py_ssize_t low = 0, high = size;
    if (size && firsts[size - 1] <= offset)
        return size - 1;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        if (firsts[middle] <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low - 1;
}

/* The index, from `low` on, of the first of rising numbers in a list that is not below `wanted`; -1
 * with an error. Steps double up to it, because it is often near. */
static inline Py_ssize_t bisect(PyObject *numbers, int64_t wanted, Py_ssize_t low)
{
    Py_ssize_t size = PyList_GET_SIZE(numbers), high = size, step = 1;
    while (low < high) {
        int is_near = high == size && step < high - low;
        Py_ssize_t middle = is_near ? low + step - 1 : (low + high) / 2;
        int64_t number = PyLong_AsLongLong(PyList_GET_ITEM(numbers, middle));
        if (number == -1 && PyErr_Occurred())
            return -1;
        if (number < wanted)
            low = middle + 1;
        else
            high = middle;
        step *= 2;
    }
    return low;
}

/* A varint as it stands, not unzigzagged; -1 for one that ends early or has more than 5 bytes. */
static inline int64_t varint(const uint8_t *data, Py_ssize_t size, Py_ssize_t *at)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        if (*at >= size)
            return -1;
        uint8_t byte = data[(*at)++];
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            return (int64_t)value;
    }
    return -1;
}

static inline uint64_t big_endian(const uint8_t *data, int size)
{
    uint64_t value = 0;
    for (int i = 0; i < size; i++)
        value = value << 8 | data[i];
    return value;
}

HIDDEN PyObject *bulk_hashes(PyObject *self, PyObject *args);
HIDDEN PyObject *bulk_keys(PyObject *self, PyObject *args);
HIDDEN PyObject *bulk_scan(PyObject *self, PyObject *args);
HIDDEN PyObject *bulk_thinned(PyObject *self, PyObject *args);
HIDDEN PyObject *bulk_gathered(PyObject *self, PyObject *args);
HIDDEN PyObject *bulk_rewrite_runs(PyObject *self, PyObject *args);
HIDDEN PyObject *bulk_ranges(PyObject *self, PyObject *args);
HIDDEN PyObject *bulk_spans(PyObject *self, PyObject *args);
HIDDEN PyObject *bulk_accepts(PyObject *self, PyObject *batches);
HIDDEN PyObject *bulk_joined(PyObject *self, PyObject *args);
HIDDEN PyObject *bulk_rises(PyObject *self, PyObject *batches);
HIDDEN PyObject *bulk_acquired(PyObject *self, PyObject *ranges);
HIDDEN PyObject *bulk_packed(PyObject *self, PyObject *batches);

extern HIDDEN PyTypeObject key_queues_type, tenant_queues_type;
