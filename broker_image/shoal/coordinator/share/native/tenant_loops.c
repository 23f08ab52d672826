/* Loops of `TenantQueues` over many records: add, choose and end. */
#include "tenants.h"
#include "columns.h"

/* The name of a header, or NULL for the key. */
typedef struct {
    const uint8_t *bytes;
    Py_ssize_t size;
} Header;

/* Where the name of a record's tenant lies in the records. */
typedef struct {
    Py_ssize_t at, size;
} Span;

/* A zigzag varint that is a size: -1 for null, -2 if it is larger than `room`. */
static int64_t size_at(const uint8_t *data, Py_ssize_t end, Py_ssize_t *at)
{
    int64_t size = varint(data, end, at);
    if (size < 0)
        return -2;
    if (size & 1)
        return size == 1 ? -1 : -2;
    size >>= 1;
    return size > end - *at ? -2 : size;
}

/* Find the tenant in the headers of a record, which lie in `[at, end)`: the last that has a value.
 * Return 0 if their layout is unusual. */
static int find_in_headers(const uint8_t *data, Py_ssize_t at, Py_ssize_t end, Header header,
                           Span *name)
{
    int64_t count = varint(data, end, &at);
    if (count < 0 || count & 1)
        return 0;
    for (count >>= 1; count > 0; count--) {
        int64_t size = size_at(data, end, &at);
        if (size < 0)
            return 0;
        for (int64_t i = 0; i < size; i++)
            if (data[at + i] & 0x80)
                return 0; /* Python knows whether it is text. */
        int is_name = size == header.size && !memcmp(data + at, header.bytes, size);
        at += size;
        if ((size = size_at(data, end, &at)) < -1)
            return 0;
        if (is_name && size >= 0)
            *name = (Span){at, size};
        at += size < 0 ? 0 : size;
    }
    return at == end;
}

/* Find the tenants of `count` records in `[at, end)`. Return 1, or 0 if a record has an unusual
 * layout. */
static int find_tenants(const uint8_t *data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t count,
                        Header header, Span *names)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t length = varint(data, end, &at);
        if (length < 12 || length & 1)
            return 0;
        Py_ssize_t place = at + 1, next = at + (length >> 1);
        if (next > end)
            return 0;
        while (place < next && data[place] & 0x80) /* The timestamp. */
            place++;
        place++;
        if (varint(data, next, &place) != 2 * i)
            return 0;
        int64_t size = size_at(data, next, &place);
        if (size < -1)
            return 0;
        names[i] = (Span){place, 0};
        if (header.bytes == NULL) {
            names[i].size = size < 0 ? 0 : size;
        } else {
            place += size < 0 ? 0 : size;
            if ((size = size_at(data, next, &place)) < -1)
                return 0;
            place += size < 0 ? 0 : size;
            if (!find_in_headers(data, place, next, header, &names[i]))
                return 0;
        }
        at = next;
    }
    return 1;
}

/* Add the records of a batch from `cursor` on. Return 1; 0, with nothing changed, if a record has
 * an unusual layout; -1 with an error. */
static int put_records(Tenants *self, const uint8_t *data, Py_ssize_t at, Py_ssize_t end,
                       Py_ssize_t count, int64_t base, int64_t cursor, Header header)
{
    Span *names = PyMem_Malloc((count + 1) * sizeof(Span));
    if (names == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int done = find_tenants(data, at, end, count, header, names);
    for (Py_ssize_t i = base < cursor ? cursor - base : 0; done > 0 && i < count; i++) {
        uint32_t tenant = tenants_find(self, data + names[i].at, names[i].size);
        uint32_t place = tenant == NONE ? NONE : tenants_add(self, base + i, tenant);
        if (place == NONE || tenants_push(self, place) < 0)
            done = -1;
    }
    PyMem_Free(names);
    return done;
}

static int64_t item_at_index(PyObject *list, Py_ssize_t at)
{
    int64_t number;
    if (at >= PyList_GET_SIZE(list) || number_of(PyList_GET_ITEM(list, at), &number) < 0) {
        PyErr_Clear();
        return -1;
    }
    return number;
}

/* put_new(data, bases, lasts, ends, cursor, budget, header | None) -> number of batches: add the
 * records from `cursor` on of the first batches that end within the budget, as new ones. */
PyObject *tenants_put_new(Tenants *self, PyObject *args)
{
    Py_buffer view;
    PyObject *bases, *lasts, *ends;
    Header header;
    long long first, budget;
    if (!PyArg_ParseTuple(args, "y*O!O!O!LLz#", &view, &PyList_Type, &bases, &PyList_Type, &lasts,
                          &PyList_Type, &ends, &first, &budget, &header.bytes, &header.size))
        return NULL;
    const uint8_t *data = view.buf;
    int64_t begin = 0, cursor = first;
    Py_ssize_t whole = 0;
    for (; whole < PyList_GET_SIZE(lasts); whole++) {
        int64_t base = item_at_index(bases, whole), last = item_at_index(lasts, whole);
        int64_t end = item_at_index(ends, whole);
        if (base < 0 || base > cursor || last < cursor || last - first >= budget || first < 0 ||
            begin > end - BATCH_HEADER_SIZE || end > view.len ||
            data[begin + BATCH_ATTRIBUTES_LOW_AT] & BATCH_COMPRESSION_MASK)
            break;
        int64_t count = (int32_t)big_endian(data + begin + BATCH_RECORD_COUNT_AT, 4);
        if (count <= 0 || count != last - base + 1 || count > end - begin)
            break;
        if (put_records(self, data, begin + BATCH_HEADER_SIZE, end, count, base, cursor, header) <= 0)
            break;
        begin = end;
        cursor = last + 1;
    }
    PyBuffer_Release(&view);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(whole);
}

/* put_body(body, begin, end, count, base, cursor, header | None) -> whether the records of a batch
 * were added. */
PyObject *tenants_put_body(Tenants *self, PyObject *args)
{
    Py_buffer body;
    Py_ssize_t begin, end, count;
    long long base, cursor;
    Header header;
    if (!PyArg_ParseTuple(args, "y*nnnLLz#", &body, &begin, &end, &count, &base, &cursor,
                          &header.bytes, &header.size))
        return NULL;
    int done = 0;
    if (begin >= 0 && begin <= end && end <= body.len && count > 0 && count <= end)
        done = put_records(self, body.buf, begin, end, count, base, cursor, header);
    PyBuffer_Release(&body);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

/* At most as many as a fetch reads. */
enum { SPANS_MAX = 128 };
/* Tenants in a round for each record of a choice (`fair_queue.py`). */
enum { ROUND_TENANTS = 4 };

/* Where in the log the records may lie (`selection.Reach`). */
typedef struct {
    int64_t span, spans[SPANS_MAX];
    Py_ssize_t size, room;
} Reach;

static int reaches(Reach *reach, int64_t offset)
{
    if (!reach->span)
        return 1;
    int64_t span = offset / reach->span;
    for (Py_ssize_t i = reach->size; i-- > 0;)
        if (reach->spans[i] == span)
            return 1;
    if (reach->size == reach->room)
        return 0;
    reach->spans[reach->size++] = span;
    return 1;
}

/* The tenants of a round: a heap by their most urgent entry, with the records that each may get. */
typedef struct {
    int64_t head, left;
    uint32_t place;
} Turn;

typedef struct {
    Turn *turns;
    uint32_t size;
    Py_ssize_t room;
    /* Whether the tenants are still in the heap of tenants, where they are not in order. */
    int is_in_place;
} Round;

static void round_sift(Round *round, uint32_t at)
{
    Turn turn = round->turns[at], *turns = round->turns;
    for (uint32_t below; (below = 2 * at + 1) < round->size; at = below) {
        below += below + 1 < round->size && turns[below + 1].head < turns[below].head;
        if (turns[below].head > turn.head)
            break;
        turns[at] = turns[below];
    }
    turns[at] = turn;
}

/* Whole quanta of records that members hold of a tenant. */
static int64_t quanta_of(const Tenants *self, const Tenant *tenant)
{
    return (int64_t)(tenant->in_flight / (self->quantum * tenant->weight));
}

static void round_add(Tenants *self, Round *round, uint32_t place, int64_t quanta)
{
    Tenant *tenant = TENANT(place);
    int64_t left = (int64_t)((quanta + 1) * self->quantum * tenant->weight) - tenant->in_flight;
    round->turns[round->size++] = (Turn){head_of(tenant), left < 1 ? 1 : left, place};
}

/* Begin a round with those of the next tenants that have equally many quanta. If there is room for
 * all tenants, they stay in their heap: to take each out costs more than to build it anew. */
static void round_begin(Tenants *self, Round *round)
{
    int64_t quanta = self->ordered ? quanta_of(self, TENANT(self->order[0])) : 0;
    round->is_in_place = self->ordered <= round->room;
    for (uint32_t at = 0; round->is_in_place && at < self->ordered; at++)
        if (quanta_of(self, TENANT(self->order[at])) == quanta)
            round_add(self, round, self->order[at], quanta);
    while (!round->is_in_place && self->ordered && round->size < round->room) {
        uint32_t place = self->order[0], last = self->order[self->ordered - 1];
        if (quanta_of(self, TENANT(place)) != quanta)
            break;
        round_add(self, round, place, quanta);
        TENANT(place)->position = NONE;
        if (--self->ordered) {
            order_put(self, 0, last);
            order_sift(self, 0);
        }
    }
    for (uint32_t at = round->size / 2; at-- > 0;)
        round_sift(round, at);
}

/* End the first turn. Return 0, or -1 with an error. */
static int round_pop(Tenants *self, Round *round)
{
    uint32_t place = round->turns[0].place;
    round->turns[0] = round->turns[--round->size];
    if (round->size)
        round_sift(round, 0);
    else if (round->is_in_place)
        order_all(self);
    return round->is_in_place ? 0 : offer(self, place);
}

/* End all turns. */
static int round_end(Tenants *self, Round *round)
{
    int failed = 0;
    if (round->size && round->is_in_place)
        order_all(self);
    while (round->size && !round->is_in_place)
        failed |= round_pop(self, round);
    round->size = 0;
    return failed;
}

/* Remove the most urgent entry of the next tenant. With a round, its turn may end. */
static int take_entry(Tenants *self, Round *round)
{
    uint32_t tenant = round->size ? round->turns[0].place : self->order[0];
    uint32_t place = find(self, entry_pop(self, TENANT(tenant)));
    if (place != NONE)
        RECORD(place)->available = 0;
    drop_outdated(self, TENANT(tenant));
    if (!round->size)
        return offer(self, tenant);
    if (!--round->turns[0].left || !TENANT(tenant)->size)
        return round_pop(self, round);
    round->turns[0].head = head_of(TENANT(tenant));
    round_sift(round, 0);
    return 0;
}

/* Leave the most urgent entry of a tenant, and remove those behind it as `pop` and `put_back` do. */
static int put_back_head(Tenants *self, uint32_t place)
{
    Tenant *tenant = TENANT(place);
    int64_t offset = entry_pop(self, tenant);
    drop_outdated(self, tenant);
    return entry_push(self, tenant, offset);
}

/* Whether the next record goes to a tenant of which members hold nothing, before the rounds. */
static int is_idle_turn(const Tenants *self, Py_ssize_t idle_turns)
{
    return idle_turns > 0 && self->ordered && !TENANT(self->order[0])->in_flight;
}

enum { FULL, DELIVERED_BEFORE, FAILED };

/* Choose up to `left` records: one by one, or a quantum by turns of idle tenants, then rounds. */
static int choose(Tenants *self, const Window *window, Round *round, Reach *reach, Py_ssize_t left,
                  int splitting, int64_t now_ms, PyObject *chosen)
{
    const uint8_t *states = window->states.buf, *counts = window->counts.buf;
    Py_ssize_t run = -1, idle_turns = self->quantum;
    while (left > 0) {
        int is_turn = !round->size && is_idle_turn(self, idle_turns);
        idle_turns = is_turn ? idle_turns - 1 : 0;
        if (self->quantum && !round->size && !is_turn)
            round_begin(self, round);
        if (!round->size && !self->ordered)
            break;
        Tenant *tenant = TENANT(round->size ? round->turns[0].place : self->order[0]);
        int64_t offset = head_of(tenant);
        uint32_t place = find(self, offset);
        run = window->size ? window_run(window, offset, run) : -1;
        if (place != NONE && run >= 0 && states[run] == AVAILABLE) {
            if (counts[run] >= splitting)
                return DELIVERED_BEFORE;
            if (!reaches(reach, offset))
                return put_back_head(self, RECORD(place)->tenant) < 0 ? FAILED : FULL;
            if (is_turn && tenant->tag < self->reach)
                tenant->tag = self->reach;
            take(self, RECORD(place), now_ms);
            if (append(chosen, offset) < 0)
                return FAILED;
            left--;
        }
        if (take_entry(self, round) < 0)
            return FAILED;
    }
    return FULL;
}

/* choose(runs, records, splitting, span, spans, now_ms, chosen) -> whether the choice ends: move up
 * to `records` offsets to `chosen`. False at a record that was delivered `splitting` times, from
 * which on the caller chooses. With a span above 0, they lie in that many spans of the log. */
PyObject *tenants_choose(Tenants *self, PyObject *args)
{
    PyObject *runs, *chosen;
    Py_ssize_t records;
    long long span, now_ms;
    int splitting, outcome = FAILED;
    Reach reach = {0};
    Round round = {0};
    Window window;
    if (!PyArg_ParseTuple(args, "OniLnLO!", &runs, &records, &splitting, &span, &reach.room,
                          &now_ms, &PyList_Type, &chosen))
        return NULL;
    reach.span = span;
    if (span < 0 || reach.room < 0 || reach.room > SPANS_MAX)
        return PyErr_Format(PyExc_ValueError, "up to %d spans", SPANS_MAX);
    if (window_open(runs, &window) < 0)
        return NULL;
    round.room = records < PY_SSIZE_T_MAX / ROUND_TENANTS ? records * ROUND_TENANTS : records;
    if (round.room > (Py_ssize_t)self->ordered)
        round.room = self->ordered;
    if (round.room > 0 && self->quantum &&
        (round.turns = PyMem_Malloc(round.room * sizeof(Turn))) == NULL)
        PyErr_NoMemory();
    else
        outcome = choose(self, &window, &round, &reach, records, splitting, now_ms, chosen);
    if (round_end(self, &round) < 0)
        outcome = FAILED;
    PyMem_Free(round.turns);
    window_close(&window);
    return outcome == FAILED ? NULL : PyBool_FromLong(outcome == FULL);
}

/* end_all(changes, below, now_ms) -> whether all are ends: remove all records that they complete
 * below an offset. Otherwise nothing is changed. */
PyObject *tenants_end_all(Tenants *self, PyObject *args)
{
    PyObject *changes;
    long long below, now_ms;
    int64_t offset, last;
    int failed = 0;
    if (!PyArg_ParseTuple(args, "OLL", &changes, &below, &now_ms))
        return NULL;
    int ends = all_end(changes);
    if (ends <= 0)
        return ends < 0 ? NULL : PyBool_FromLong(0);
    follow(self, now_ms);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(changes); i++) {
        bounds(PyList_GET_ITEM(changes, i), &offset, &last);
        for (; !failed && offset <= last && offset < below; offset++) {
            uint32_t place = find(self, offset);
            failed = place != NONE && end_record(self, place, now_ms) < 0;
        }
    }
    table_tidy(&self->records);
    return failed ? NULL : PyBool_FromLong(1);
}
