/* The module: its functions by name, and its types. */
#include "share_native.h"

static PyMethodDef methods[] = {
    {"hashes", bulk_hashes, METH_VARARGS, NULL},
    {"keys", bulk_keys, METH_VARARGS, NULL},
    {"scan", bulk_scan, METH_VARARGS, NULL},
    {"thinned", bulk_thinned, METH_VARARGS, NULL},
    {"gathered", bulk_gathered, METH_VARARGS, NULL},
    {"rewrite_runs", bulk_rewrite_runs, METH_VARARGS, NULL},
    {"ranges", bulk_ranges, METH_O, NULL},
    {"spans", bulk_spans, METH_VARARGS, NULL},
    {"accepts", bulk_accepts, METH_O, NULL},
    {"joined", bulk_joined, METH_VARARGS, NULL},
    {"rises", bulk_rises, METH_O, NULL},
    {"acquired", bulk_acquired, METH_O, NULL},
    {"packed", bulk_packed, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_share_native", NULL, 0, methods, 0, 0, 0, 0};

PyMODINIT_FUNC PyInit__share_native(void)
{
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && (PyModule_AddType(made, &key_queues_type) < 0 ||
                         PyModule_AddType(made, &tenant_queues_type) < 0))
        Py_CLEAR(made);
    return made;
}
