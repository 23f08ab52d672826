/* The type `TenantQueues`: its tenants, its methods for single records, and its properties. */
#include "tenants.h"

static PyObject *tenants_new(PyTypeObject *type, PyObject *args, PyObject *words)
{
    PyObject *make_name;
    Py_ssize_t name_max, idle_min, idle_kept;
    double cost_ms, debt_ms;
    if (!PyArg_ParseTuple(args, "Onddnn", &make_name, &name_max, &cost_ms, &debt_ms, &idle_min,
                          &idle_kept))
        return NULL;
    Tenants *self = (Tenants *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->records = self->tenants = TABLE_EMPTY;
    self->make_name = Py_NewRef(make_name);
    self->name_max = name_max;
    self->cost_ms = cost_ms;
    self->debt_ms = debt_ms;
    self->idle_min = self->idle_max = idle_min;
    self->idle_kept = idle_kept;
    return (PyObject *)self;
}

/* Whether there is a tenant at a place: others are free. */
static int is_tenant(const Tenants *self, uint32_t place)
{
    return table_find(&self->tenants, sizeof(Tenant), TENANT(place)->item.number) == place;
}

static void tenants_dealloc(Tenants *self)
{
    for (uint32_t place = 0; place < self->tenants.used; place++) {
        if (!is_tenant(self, place))
            continue;
        free(TENANT(place)->name);
        if (TENANT(place)->size > 1)
            free(TENANT(place)->at.heap);
    }
    table_clear(&self->records);
    table_clear(&self->tenants);
    free(self->order);
    Py_CLEAR(self->weights);
    Py_CLEAR(self->make_name);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *tenants_sizeof(Tenants *self, PyObject *unused)
{
    return PyLong_FromSize_t(sizeof(Tenants) + table_bytes(&self->records, sizeof(Record)) +
                             table_bytes(&self->tenants, sizeof(Tenant)) +
                             self->room * sizeof(uint32_t) + self->name_bytes + self->entry_bytes);
}

/* Find the weight of a name: 0, or -1 with an error. */
static int weigh(Tenants *self, const char *name, Py_ssize_t size, double *weight)
{
    *weight = 1.0;
    if (self->weights == NULL || !PyDict_GET_SIZE(self->weights))
        return 0;
    PyObject *key = PyBytes_FromStringAndSize(name, size);
    PyObject *known = key == NULL ? NULL : PyDict_GetItemWithError(self->weights, key);
    Py_XDECREF(key);
    if (known != NULL)
        *weight = PyFloat_AsDouble(known);
    return PyErr_Occurred() ? -1 : 0;
}

typedef struct {
    double tag;
    uint32_t place;
} Idle;

static int by_tag(const void *one, const void *other)
{
    const Idle *a = one, *b = other;
    if (a->tag != b->tag)
        return a->tag < b->tag ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

/* Forget tenants without records whose use does not count any more. */
static int forget_idle(Tenants *self)
{
    Idle *idle = PyMem_Malloc((self->tenants.used + 1) * sizeof(Idle));
    Py_ssize_t size = 0;
    if (idle == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (uint32_t place = 0; place < self->tenants.used; place++)
        if (!TENANT(place)->records && !TENANT(place)->size && is_tenant(self, place))
            idle[size++] = (Idle){TENANT(place)->tag, place};
    qsort(idle, size, sizeof(Idle), by_tag);
    for (Py_ssize_t i = 0; i < size; i++) {
        if (idle[i].tag > self->reach && size - i <= self->idle_kept)
            continue;
        self->name_bytes -= sizeof(Name) + TENANT(idle[i].place)->name->size;
        free(TENANT(idle[i].place)->name);
        TENANT(idle[i].place)->name = NULL;
        table_remove(&self->tenants, sizeof(Tenant), idle[i].place);
    }
    PyMem_Free(idle);
    Py_ssize_t twice = 2 * (Py_ssize_t)self->tenants.count;
    self->idle_max = twice < self->idle_min ? self->idle_min : twice;
    return 0;
}

/* Return the place of the tenant that a record names, and add one that is new; NONE with an
 * error. */
uint32_t tenants_find(Tenants *self, const uint8_t *name, Py_ssize_t size)
{
    PyObject *cut = NULL;
    uint32_t place = NONE;
    double weight;
    if (size > self->name_max) {
        cut = PyObject_CallFunction(self->make_name, "y#", name, size);
        if (cut == NULL || !PyBytes_Check(cut))
            goto done;
        name = (const uint8_t *)PyBytes_AS_STRING(cut);
        size = PyBytes_GET_SIZE(cut);
    }
    Py_hash_t hash = HASH_BYTES(name, size);
    place = table_find(&self->tenants, sizeof(Tenant), hash);
    if (place != NONE || weigh(self, (const char *)name, size, &weight) < 0)
        goto done;
    Name *kept = malloc(sizeof(Name) + size);
    if (kept == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    kept->size = (uint32_t)size;
    memcpy(kept->bytes, name, size);
    if ((place = table_add(&self->tenants, sizeof(Tenant), hash)) == NONE) {
        free(kept);
        goto done;
    }
    Tenant *tenant = TENANT(place);
    tenant->name = kept;
    tenant->weight = weight;
    tenant->tag = self->reach;
    tenant->position = NONE;
    self->name_bytes += sizeof(Name) + size;
done:
    Py_XDECREF(cut);
    return place;
}

/* Add an incomplete record of a tenant. Return its place, or NONE with an error. */
uint32_t tenants_add(Tenants *self, int64_t offset, uint32_t tenant)
{
    uint32_t place = find(self, offset);
    if (place != NONE || (place = table_add(&self->records, sizeof(Record), offset)) == NONE)
        return place;
    RECORD(place)->since_ms = NEVER;
    RECORD(place)->tenant = tenant;
    if (!TENANT(tenant)->records++)
        self->active_weight += TENANT(tenant)->weight;
    if ((Py_ssize_t)self->tenants.count > self->idle_max && forget_idle(self) < 0)
        return NONE;
    return place;
}

/* Add an available record to the entries of its tenant. Return 0, or -1 with an error. */
int tenants_push(Tenants *self, uint32_t place)
{
    Record *record = RECORD(place);
    Tenant *tenant = TENANT(record->tenant);
    int failed = 0;
    if (!record->available) {
        if (entry_push(self, tenant, record->item.number) < 0)
            return -1;
        record->available = 1;
        if (head_of(tenant) == record->item.number) {
            if (tenant->size == 1 && !tenant->is_back && tenant->tag < self->reach)
                tenant->tag = self->reach;
            failed = offer(self, record->tenant);
        }
    }
    tenant->is_back = 0;
    return failed;
}

/* Methods. */

static PyObject *tenants_configure(Tenants *self, PyObject *weights)
{
    if (!PyDict_CheckExact(weights))
        return PyErr_Format(PyExc_TypeError, "weights are a dict");
    Py_XSETREF(self->weights, Py_NewRef(weights));
    self->active_weight = 0;
    for (uint32_t place = 0; place < self->tenants.used; place++) {
        if (!is_tenant(self, place))
            continue;
        Tenant *tenant = TENANT(place);
        if (weigh(self, tenant->name->bytes, tenant->name->size, &tenant->weight) < 0)
            return NULL;
        if (tenant->records)
            self->active_weight += tenant->weight;
        if (offer(self, place) < 0)
            return NULL;
    }
    /* Each was moved while others had their former weight. */
    for (uint32_t position = self->ordered / 2 + 1; position-- > 0;)
        if (position < self->ordered)
            order_sift(self, position);
    Py_RETURN_NONE;
}

static PyObject *tenants_begin(Tenants *self, PyObject *args)
{
    long long now_ms;
    Py_ssize_t quantum;
    if (!PyArg_ParseTuple(args, "Ln", &now_ms, &quantum))
        return NULL;
    follow(self, now_ms);
    self->quantum = quantum;
    Py_RETURN_NONE;
}

static PyObject *tenants_add_one(Tenants *self, PyObject *args)
{
    long long offset;
    Py_buffer name;
    if (!PyArg_ParseTuple(args, "Ly*", &offset, &name))
        return NULL;
    uint32_t tenant = tenants_find(self, name.buf, name.len);
    PyBuffer_Release(&name);
    if (tenant == NONE || tenants_add(self, offset, tenant) == NONE)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *tenants_push_one(Tenants *self, PyObject *argument)
{
    int64_t offset;
    if (number_of(argument, &offset) < 0)
        return NULL;
    uint32_t place = find(self, offset);
    if (place == NONE) { /* It was not scanned. */
        uint32_t tenant = tenants_find(self, (const uint8_t *)"", 0);
        if (tenant == NONE || (place = tenants_add(self, offset, tenant)) == NONE)
            return NULL;
    }
    if (tenants_push(self, place) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *tenants_pop(Tenants *self, PyObject *unused)
{
    if (!self->ordered)
        Py_RETURN_NONE;
    uint32_t tenant = self->order[0];
    int64_t offset = entry_pop(self, TENANT(tenant));
    uint32_t place = find(self, offset);
    if (place != NONE)
        RECORD(place)->available = 0;
    drop_outdated(self, TENANT(tenant));
    return offer(self, tenant) < 0 ? NULL : PyLong_FromLongLong(offset);
}

/* take(offset, now_ms) */
static PyObject *tenants_take(Tenants *self, PyObject *args)
{
    long long offset, now_ms;
    if (!PyArg_ParseTuple(args, "LL", &offset, &now_ms))
        return NULL;
    uint32_t place = find(self, offset);
    if (place == NONE)
        return PyErr_Format(PyExc_KeyError, "offset %lld was not scanned", offset);
    take(self, RECORD(place), now_ms);
    if (offer(self, RECORD(place)->tenant) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* hold(offset, now_ms) */
static PyObject *tenants_hold(Tenants *self, PyObject *args)
{
    long long offset, now_ms;
    if (!PyArg_ParseTuple(args, "LL", &offset, &now_ms))
        return NULL;
    uint32_t place = find(self, offset);
    if (place == NONE)
        return PyErr_Format(PyExc_KeyError, "offset %lld was not scanned", offset);
    if (RECORD(place)->since_ms == NEVER) {
        RECORD(place)->since_ms = now_ms;
        TENANT(RECORD(place)->tenant)->in_flight++;
        self->in_flight++;
        if (offer(self, RECORD(place)->tenant) < 0)
            return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *tenants_put_back(Tenants *self, PyObject *argument)
{
    int64_t offset;
    uint32_t place;
    if (number_of(argument, &offset) < 0)
        return NULL;
    if ((place = find(self, offset)) != NONE) {
        TENANT(RECORD(place)->tenant)->is_back = 1;
        if (tenants_push(self, place) < 0)
            return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *tenants_restore(Tenants *self, PyObject *argument)
{
    int64_t offset;
    uint32_t place;
    if (number_of(argument, &offset) < 0)
        return NULL;
    if ((place = find(self, offset)) != NONE && RECORD(place)->since_ms != NEVER) {
        Tenant *tenant = TENANT(RECORD(place)->tenant);
        RECORD(place)->since_ms = NEVER;
        tenant->in_flight--;
        self->in_flight--;
        tenant->tag -= self->cost_ms / tenant->weight;
        tenant->is_back = 1;
        if (offer(self, RECORD(place)->tenant) < 0)
            return NULL;
    }
    Py_RETURN_NONE;
}

static int charge_place(Tenants *self, uint32_t place, int64_t now_ms)
{
    return charge(self, RECORD(place), now_ms);
}

/* Do the same with each of some offsets that are known. */
static PyObject *follow_each(Tenants *self, PyObject *args,
                             int (*change)(Tenants *, uint32_t, int64_t))
{
    PyObject *given;
    long long now_ms;
    int64_t offset;
    if (!PyArg_ParseTuple(args, "OL", &given, &now_ms))
        return NULL;
    PyObject *offsets = PySequence_List(given);
    int failed = offsets == NULL;
    follow(self, now_ms);
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(offsets); i++) {
        failed = number_of(PyList_GET_ITEM(offsets, i), &offset) < 0;
        uint32_t place = failed ? NONE : find(self, offset);
        failed = failed || (place != NONE && change(self, place, now_ms) < 0);
    }
    Py_XDECREF(offsets);
    table_tidy(&self->records);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

/* release(offsets, now_ms) */
static PyObject *tenants_release(Tenants *self, PyObject *args)
{
    return follow_each(self, args, charge_place);
}

/* end(offsets, now_ms) */
static PyObject *tenants_end(Tenants *self, PyObject *args)
{
    return follow_each(self, args, end_record);
}

/* list_records() -> [(offset, name, since_ms | None, available)] */
static PyObject *tenants_list_records(Tenants *self, PyObject *unused)
{
    PyObject *found = PyList_New(0);
    for (uint32_t place = 0; found != NULL && place < self->records.used; place++) {
        Record *record = RECORD(place);
        if (find(self, record->item.number) != place)
            continue;
        Name *name = TENANT(record->tenant)->name;
        PyObject *since = record->since_ms == NEVER ? Py_NewRef(Py_None)
                                                    : PyLong_FromLongLong(record->since_ms);
        PyObject *one = Py_BuildValue("(Ly#NO)", (long long)record->item.number, name->bytes,
                                      (Py_ssize_t)name->size, since,
                                      record->available ? Py_True : Py_False);
        if (one == NULL || PyList_Append(found, one) < 0)
            Py_CLEAR(found);
        Py_XDECREF(one);
    }
    return found;
}

/* list_tenants(count) -> [(name, weight, tag, records at members, available ones)] */
static PyObject *tenants_list_tenants(Tenants *self, PyObject *argument)
{
    int64_t count;
    if (number_of(argument, &count) < 0)
        return NULL;
    PyObject *found = PyList_New(0);
    for (uint32_t place = 0; found != NULL && place < self->tenants.used && count > 0; place++) {
        if (!is_tenant(self, place))
            continue;
        Tenant *tenant = TENANT(place);
        PyObject *one = Py_BuildValue("(y#ddII)", tenant->name->bytes,
                                      (Py_ssize_t)tenant->name->size, tenant->weight, tenant->tag,
                                      (unsigned int)tenant->in_flight, tenant->size);
        if (one == NULL || PyList_Append(found, one) < 0)
            Py_CLEAR(found);
        Py_XDECREF(one);
        count--;
    }
    return found;
}

/* list_available() -> offsets, outdated ones included */
static PyObject *tenants_list_available(Tenants *self, PyObject *unused)
{
    PyObject *found = PyList_New(0);
    for (uint32_t i = 0; found != NULL && i < self->ordered; i++) {
        Tenant *tenant = TENANT(self->order[i]);
        const int64_t *entries = tenant->size == 1 ? &tenant->at.only : tenant->at.heap;
        for (uint32_t j = 0; found != NULL && j < tenant->size; j++)
            if (append(found, entries[j]) < 0)
                Py_CLEAR(found);
    }
    return found;
}

static Py_ssize_t tenants_length(Tenants *self)
{
    return self->available;
}

static PyObject *get_reach(Tenants *self, void *unused)
{
    return PyFloat_FromDouble(self->reach);
}

static PyObject *get_now_ms(Tenants *self, void *unused)
{
    return PyLong_FromLongLong(self->now_ms);
}

static PyObject *get_tenants(Tenants *self, void *unused)
{
    return PyLong_FromUnsignedLong(self->tenants.count);
}

#define METHOD(name, function, kind) {name, (PyCFunction)(void (*)(void))function, kind, NULL}

static PyMethodDef methods[] = {
    METHOD("configure", tenants_configure, METH_O),
    METHOD("begin", tenants_begin, METH_VARARGS),
    METHOD("add", tenants_add_one, METH_VARARGS),
    METHOD("push", tenants_push_one, METH_O),
    METHOD("pop", tenants_pop, METH_NOARGS),
    METHOD("take", tenants_take, METH_VARARGS),
    METHOD("hold", tenants_hold, METH_VARARGS),
    METHOD("put_back", tenants_put_back, METH_O),
    METHOD("restore", tenants_restore, METH_O),
    METHOD("release", tenants_release, METH_VARARGS),
    METHOD("end", tenants_end, METH_VARARGS),
    METHOD("put_new", tenants_put_new, METH_VARARGS),
    METHOD("put_body", tenants_put_body, METH_VARARGS),
    METHOD("choose", tenants_choose, METH_VARARGS),
    METHOD("end_all", tenants_end_all, METH_VARARGS),
    METHOD("list_records", tenants_list_records, METH_NOARGS),
    METHOD("list_tenants", tenants_list_tenants, METH_O),
    METHOD("list_available", tenants_list_available, METH_NOARGS),
    METHOD("__sizeof__", tenants_sizeof, METH_NOARGS),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef facts[] = {
    {"reach", (getter)get_reach, NULL, NULL, NULL},
    {"now_ms", (getter)get_now_ms, NULL, NULL, NULL},
    {"tenants", (getter)get_tenants, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PySequenceMethods as_sequence = {.sq_length = (lenfunc)tenants_length};

PyTypeObject tenant_queues_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "_share_native.TenantQueues",
    .tp_basicsize = sizeof(Tenants),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_as_sequence = &as_sequence,
    .tp_new = tenants_new,
    .tp_dealloc = (destructor)tenants_dealloc,
    .tp_methods = methods,
    .tp_getset = facts,
};
