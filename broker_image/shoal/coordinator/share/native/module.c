/* The module: its functions by name. */
#include "bulk.h"

static PyMethodDef methods[] = {
    {"hashes", bulk_hashes, METH_VARARGS, NULL},
    {"scan", bulk_scan, METH_VARARGS, NULL},
    {"thinned", bulk_thinned, METH_VARARGS, NULL},
    {"put_new", bulk_put_new, METH_VARARGS, NULL},
    {"choose", bulk_choose, METH_VARARGS, NULL},
    {"end", bulk_end, METH_VARARGS, NULL},
    {"rewrite", bulk_rewrite, METH_VARARGS, NULL},
    {"ranges", bulk_ranges, METH_O, NULL},
    {"spans", bulk_spans, METH_VARARGS, NULL},
    {"accepts", bulk_accepts, METH_O, NULL},
    {"joined", bulk_joined, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_bulk", NULL, 0, methods, 0, 0, 0, 0};

PyMODINIT_FUNC PyInit__bulk(void)
{
    return PyModule_Create(&module);
}
