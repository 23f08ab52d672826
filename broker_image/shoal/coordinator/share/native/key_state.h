/* The state of the type `KeyQueues`, and changes of single records: `key_queues.PlainKeyQueues` in
 * two tables of C numbers, without Python objects. Arguments must be exact ints, so that no Python
 * code runs while places are in use. */
#include "share_native.h"
#include "key_table.h"
#include "numbers.h"

/* As in `key_queues.py`. */
enum { SORTED_MAX = 4 };

/* An incomplete record with a key, or a reserved record. */
typedef struct {
    Item item; /* Its offset. */
    uint32_t key; /* NONE without one. */
    uint32_t before, behind; /* Neighbours with the same key, in log order. */
    uint8_t reserved;
} Record;

typedef struct {
    Item item; /* Its hash. */
    uint32_t first, last, size, busy; /* Records, and how many of them are reserved. */
    uint32_t next; /* The key that was touched before. */
    uint8_t touched;
} Key;

typedef struct {
    PyObject_HEAD
    Table records, keys;
    int64_t end; /* New records lie from here on. */
    /* Records with a key, keys with several records, reserved records with a key, and their keys. */
    Py_ssize_t keyed, waiting, reserved, busy;
} Queues;

#define RECORD(place) ((Record *)self->records.items + (place))
#define KEY(place) ((Key *)self->keys.items + (place))

static inline uint32_t find(const Queues *self, int64_t offset)
{
    return table_find(&self->records, sizeof(Record), offset);
}

/* Add a record behind all others. Return 1 if it is the first of its key, else 0, -1 with an error.
 * */
static inline int put(Queues *self, int64_t offset, int64_t hash)
{
    uint32_t key = table_find(&self->keys, sizeof(Key), hash);
    uint32_t place = table_add(&self->records, sizeof(Record), offset);
    int is_first = key == NONE;
    if (place == NONE)
        return -1;
    if (is_first && (key = table_add(&self->keys, sizeof(Key), hash)) == NONE) {
        table_remove(&self->records, sizeof(Record), place);
        return -1;
    }
    Record *record = RECORD(place);
    Key *known = KEY(key);
    record->key = key;
    record->behind = NONE;
    record->before = is_first ? NONE : known->last;
    *(is_first ? &known->first : &RECORD(known->last)->behind) = place;
    known->last = place;
    self->waiting += ++known->size == 2;
    self->keyed++;
    self->end = offset + 1;
    return is_first;
}

/* Mark the record of a place as acquired. Return 0, or -1 with an error. */
static inline int reserve(Queues *self, int64_t offset, uint32_t place)
{
    if (place == NONE) {
        if (offset == INT64_MAX) {
            PyErr_SetString(PyExc_OverflowError, "offsets have 63 bits");
            return -1;
        }
        if ((place = table_add(&self->records, sizeof(Record), offset)) == NONE)
            return -1;
        RECORD(place)->key = NONE;
        self->end = offset < self->end ? self->end : offset + 1;
    }
    Record *record = RECORD(place);
    if (!record->reserved && record->key != NONE) {
        self->busy += KEY(record->key)->busy++ == 0;
        self->reserved++;
    }
    record->reserved = 1;
    return 0;
}

/* Mark a record as not acquired. */
static inline void let_go(Queues *self, Record *record)
{
    if (record->reserved && record->key != NONE) {
        self->busy -= --KEY(record->key)->busy == 0;
        self->reserved--;
    }
    record->reserved = 0;
}

/* Remove a record. Return its key if other records of the key are left, else NONE. */
static inline uint32_t forget(Queues *self, uint32_t place)
{
    Record *record = RECORD(place);
    uint32_t key = record->key;
    let_go(self, record);
    table_remove(&self->records, sizeof(Record), place);
    if (key == NONE)
        return NONE;
    Key *known = KEY(key);
    *(record->before == NONE ? &known->first : &RECORD(record->before)->behind) = record->behind;
    *(record->behind == NONE ? &known->last : &RECORD(record->behind)->before) = record->before;
    self->keyed--;
    self->waiting -= --known->size == 1;
    if (known->size)
        return key;
    table_remove(&self->keys, sizeof(Key), key);
    return NONE;
}

/* Add a key once to the list at `head`. Return the new head. */
static inline uint32_t touch(Queues *self, uint32_t key, uint32_t head)
{
    if (key == NONE || KEY(key)->touched)
        return head;
    KEY(key)->touched = 1;
    KEY(key)->next = head;
    return key;
}

static inline void tidy(Queues *self)
{
    table_tidy(&self->records);
    table_tidy(&self->keys);
}

/* Check that new records lie behind all others. */
static inline int check_behind(const Queues *self, int64_t first)
{
    if (first >= self->end && first < INT64_MAX)
        return 0;
    PyErr_SetString(PyExc_ValueError, "records are put in the order of the log");
    return -1;
}

HIDDEN PyObject *queues_put_new(Queues *self, PyObject *args);
HIDDEN PyObject *queues_choose(Queues *self, PyObject *args);
HIDDEN PyObject *queues_end_all(Queues *self, PyObject *args);
