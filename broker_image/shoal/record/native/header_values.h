/* The function of `header_values.c` in the module `_record_native`. */
#ifndef SHOAL_HEADER_VALUES_H
#define SHOAL_HEADER_VALUES_H

__attribute__((visibility("hidden"))) PyObject *header_values_first(PyObject *self, PyObject *args);

#endif
