/* Functions of key ranges in the module `_record_native`. */
#ifndef SHOAL_KEY_RANGES_H
#define SHOAL_KEY_RANGES_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define HIDDEN __attribute__((visibility("hidden")))

HIDDEN PyObject *key_ranges_hash(PyObject *self, PyObject *key);
HIDDEN PyObject *key_ranges_hash_batches(PyObject *self, PyObject *args);
HIDDEN PyObject *key_ranges_record_hashes(PyObject *self, PyObject *args);
HIDDEN PyObject *key_ranges_records_in(PyObject *self, PyObject *args);

#endif
