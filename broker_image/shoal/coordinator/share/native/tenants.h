/* The state of the type `TenantQueues`, and changes of single records: what `fair_queue.FairQueue`
 * keeps of a group that is fair and has neither priority nor limits, without Python objects. */
#include "share_native.h"
#include "key_table.h"
#include "numbers.h"

/* The time of a record that no member holds. */
#define NEVER INT64_MIN
/* Entries of a tenant for which there is room at least, if it has several. */
enum { ENTRIES_MIN = 4 };

/* An incomplete record. */
typedef struct {
    Item item; /* Its offset. */
    int64_t since_ms; /* When a member got it. */
    uint32_t tenant;
    uint8_t available; /* Whether it is among the tenant's entries. */
} Record;

typedef struct {
    uint32_t size;
    char bytes[];
} Name;

typedef struct {
    Item item; /* The hash of its name. */
    Name *name;
    double weight, tag;
    union {
        int64_t only; /* The entry of a tenant with one. */
        int64_t *heap; /* Room for a power of two. */
    } at; /* The first entry is never outdated. */
    uint32_t size, records, in_flight : 31;
    uint32_t is_back : 1; /* A chosen record comes back that no member got: it was not idle. */
    uint32_t position; /* In `order`; NONE without entries. */
} Tenant;

typedef struct {
    PyObject_HEAD
    Table records, tenants;
    uint32_t *order; /* A heap of the tenants with entries. */
    uint32_t ordered, room;
    Py_ssize_t quantum; /* Of the present choice; 0 if tenants are compared for each record. */
    Py_ssize_t available, in_flight;
    Py_ssize_t outdated; /* At least as many as there are entries of complete records. */
    int64_t now_ms;
    double active_weight, reach;
    size_t name_bytes, entry_bytes;
    /* Settings: the weights of named tenants, and constants of `fair_queue.py`. */
    PyObject *weights, *make_name;
    Py_ssize_t name_max, idle_min, idle_kept, idle_max;
    double cost_ms, debt_ms;
} Tenants;

#define RECORD(place) ((Record *)self->records.items + (place))
#define TENANT(place) ((Tenant *)self->tenants.items + (place))

static inline uint32_t find(const Tenants *self, int64_t offset)
{
    return table_find(&self->records, sizeof(Record), offset);
}

static inline double level_of(const Tenant *tenant)
{
    return tenant->in_flight / tenant->weight;
}

static inline int64_t head_of(const Tenant *tenant)
{
    return tenant->size == 1 ? tenant->at.only : tenant->at.heap[0];
}

/* The heap of tenants: level, tag, most urgent entry. */

static inline int is_before(const Tenants *self, uint32_t one, uint32_t other)
{
    const Tenant *a = TENANT(one), *b = TENANT(other);
    double first = level_of(a), second = level_of(b);
    if (first != second)
        return first < second;
    return a->tag != b->tag ? a->tag < b->tag : head_of(a) < head_of(b);
}

static inline void order_put(Tenants *self, uint32_t position, uint32_t place)
{
    self->order[position] = place;
    TENANT(place)->position = position;
}

/* Put a tenant at a position or below it, where it belongs. */
static inline void order_down(Tenants *self, uint32_t position, uint32_t place)
{
    for (uint32_t below; (below = 2 * position + 1) < self->ordered; position = below) {
        if (below + 1 < self->ordered && is_before(self, self->order[below + 1], self->order[below]))
            below++;
        if (!is_before(self, self->order[below], place))
            break;
        order_put(self, position, self->order[below]);
    }
    order_put(self, position, place);
}

/* Move the tenant at a position to where it belongs. */
static inline void order_sift(Tenants *self, uint32_t position)
{
    uint32_t place = self->order[position];
    for (uint32_t above; position; position = above) {
        above = (position - 1) / 2;
        if (!is_before(self, place, self->order[above]))
            break;
        order_put(self, position, self->order[above]);
    }
    order_down(self, position, place);
}

/* Give a tenant its place in the heap, or none if it has no entries. Return 0, or -1 with an
 * error. */
static inline int offer(Tenants *self, uint32_t place)
{
    Tenant *tenant = TENANT(place);
    uint32_t position = tenant->position;
    if (position == NONE && tenant->size) {
        if (self->ordered == self->room) {
            uint32_t room = self->room ? 2 * self->room : ROOM_MIN;
            uint32_t *order = realloc(self->order, room * sizeof(uint32_t));
            if (order == NULL) {
                PyErr_NoMemory();
                return -1;
            }
            self->order = order;
            self->room = room;
        }
        order_put(self, self->ordered, place);
        order_sift(self, self->ordered++);
    } else if (tenant->size) {
        order_sift(self, position);
    } else if (position != NONE) {
        uint32_t last = self->order[--self->ordered];
        tenant->position = NONE;
        if (last != place) {
            order_put(self, position, last);
            order_sift(self, position);
        }
    }
    return 0;
}

/* Build the heap of tenants anew, without those that have no entries any more. */
static inline void order_all(Tenants *self)
{
    uint32_t kept = 0;
    for (uint32_t at = 0; at < self->ordered; at++) {
        uint32_t place = self->order[at];
        if (TENANT(place)->size)
            order_put(self, kept++, place);
        else
            TENANT(place)->position = NONE;
    }
    self->ordered = kept;
    for (uint32_t at = kept / 2; at-- > 0;)
        order_down(self, at, self->order[at]);
}

/* The entries of a tenant: a heap of offsets. */

static inline uint32_t entries_room(uint32_t size)
{
    uint32_t room = ENTRIES_MIN;
    while (room < size)
        room *= 2;
    return size > 1 ? room : 0;
}

static inline int entry_push(Tenants *self, Tenant *tenant, int64_t offset)
{
    uint32_t size = tenant->size, before = entries_room(size), room = entries_room(size + 1);
    if (!size) {
        tenant->at.only = offset;
    } else {
        if (room != before) {
            int64_t only = tenant->at.only;
            int64_t *heap = realloc(size == 1 ? NULL : tenant->at.heap, room * sizeof(int64_t));
            if (heap == NULL) {
                PyErr_NoMemory();
                return -1;
            }
            if (size == 1)
                heap[0] = only;
            tenant->at.heap = heap;
            self->entry_bytes += (room - before) * sizeof(int64_t);
        }
        int64_t *heap = tenant->at.heap;
        uint32_t at = size;
        for (; at && heap[(at - 1) / 2] > offset; at = (at - 1) / 2)
            heap[at] = heap[(at - 1) / 2];
        heap[at] = offset;
    }
    tenant->size++;
    self->available++;
    return 0;
}

static inline int64_t entry_pop(Tenants *self, Tenant *tenant)
{
    int64_t first = head_of(tenant);
    uint32_t size = --tenant->size, room = entries_room(size);
    self->available--;
    if (!size)
        return first;
    int64_t *heap = tenant->at.heap, last = heap[size];
    self->entry_bytes -= (entries_room(size + 1) - room) * sizeof(int64_t);
    if (size == 1) {
        last = heap[1];
        free(heap);
        tenant->at.only = last;
        return first;
    }
    uint32_t at = 0;
    for (uint32_t below; (below = 2 * at + 1) < size; at = below) {
        below += below + 1 < size && heap[below + 1] < heap[below];
        if (heap[below] >= last)
            break;
        heap[at] = heap[below];
    }
    heap[at] = last;
    if (room != entries_room(size + 1)) {
        heap = realloc(heap, room * sizeof(int64_t));
        if (heap != NULL) /* Otherwise it is larger than it needs to be. */
            tenant->at.heap = heap;
    }
    return first;
}

/* Remove the first entries as far as their records are complete. Return whether there were any. */
static inline int drop_outdated(Tenants *self, Tenant *tenant)
{
    Py_ssize_t before = self->available;
    for (; self->outdated && tenant->size && find(self, head_of(tenant)) == NONE; self->outdated--)
        entry_pop(self, tenant);
    return self->available < before;
}

/* Let the virtual time follow the clock. */
static inline void follow(Tenants *self, int64_t now_ms)
{
    if (now_ms <= self->now_ms)
        return;
    if (self->in_flight && self->active_weight > 0)
        self->reach += (double)(now_ms - self->now_ms) * self->in_flight / self->active_weight;
    self->now_ms = now_ms;
}

/* A member gets a record. The caller offers the tenant. */
static inline void take(Tenants *self, Record *record, int64_t now_ms)
{
    Tenant *tenant = TENANT(record->tenant);
    tenant->tag += self->cost_ms / tenant->weight;
    self->reach = self->reach < tenant->tag ? tenant->tag : self->reach;
    tenant->in_flight++;
    self->in_flight++;
    record->since_ms = now_ms;
}

/* Add the time that a member had a record, if one had it, to its tenant's use. */
static inline int charge(Tenants *self, Record *record, int64_t now_ms)
{
    if (record->since_ms == NEVER)
        return 0;
    Tenant *tenant = TENANT(record->tenant);
    double used_ms = now_ms > record->since_ms ? (double)(now_ms - record->since_ms) : 0.0;
    double tag = tenant->tag + used_ms / tenant->weight;
    double limit = self->reach + self->debt_ms / tenant->weight;
    tenant->tag = limit < tag ? limit : tag;
    tenant->in_flight--;
    self->in_flight--;
    record->since_ms = NEVER;
    return offer(self, record->tenant);
}

/* Remove a complete record. An entry of it is outdated then. */
static inline int end_record(Tenants *self, uint32_t place, int64_t now_ms)
{
    Record *record = RECORD(place);
    uint32_t owner = record->tenant;
    Tenant *tenant = TENANT(owner);
    int failed = charge(self, record, now_ms);
    self->outdated += record->available;
    if (!--tenant->records)
        self->active_weight -= tenant->weight;
    table_remove(&self->records, sizeof(Record), place);
    return drop_outdated(self, tenant) && offer(self, owner) < 0 ? -1 : failed;
}

HIDDEN uint32_t tenants_find(Tenants *self, const uint8_t *name, Py_ssize_t size);
HIDDEN uint32_t tenants_add(Tenants *self, int64_t offset, uint32_t tenant);
HIDDEN int tenants_push(Tenants *self, uint32_t place);
HIDDEN PyObject *tenants_put_new(Tenants *self, PyObject *args);
HIDDEN PyObject *tenants_put_body(Tenants *self, PyObject *args);
HIDDEN PyObject *tenants_choose(Tenants *self, PyObject *args);
HIDDEN PyObject *tenants_end_all(Tenants *self, PyObject *args);
