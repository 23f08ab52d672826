/* A hash table by number: a pool of items, and chains by the numbers' hashes. An item keeps its
 * place until it is removed, so items refer to each other by place. The first field of an entry is
 * an `Item`; `width` is the entry's size, a constant at each call.  */
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

enum { ROOM_MIN = 64, ROOM_MAX = 1 << 30 };

typedef struct {
    int64_t number;
    uint32_t chain; /* The next item of its bucket, or of those that are free. */
} Item;

typedef struct {
    char *items;
    uint32_t *buckets; /* As many as there is room for, a power of two; NULL while that is none. */
    uint32_t room, used, free, count;
    int shift;
} Table;

#define TABLE_EMPTY ((Table){.free = NONE})

static inline Item *item_at(const Table *table, size_t width, uint32_t place)
{
    return (Item *)(table->items + width * place);
}

/* Sixteen offsets that follow each other share a cache line, and those with equal distances are
 * spread: such as every 64th, of one among 64 tenants. */
static inline uint32_t *bucket_of(const Table *table, int64_t number)
{
    uint64_t line = ((uint64_t)number >> 4) * 0x9E3779B97F4A7C15u >> table->shift;
    return &table->buckets[line ^ (number & 15)];
}

/* Return the place of a number, or NONE. */
static inline uint32_t table_find(const Table *table, size_t width, int64_t number)
{
    if (!table->count)
        return NONE;
    uint32_t place = *bucket_of(table, number);
    while (place != NONE && item_at(table, width, place)->number != number)
        place = item_at(table, width, place)->chain;
    return place;
}

/* Double a full table. Return 0, or -1 with an error and nothing changed. */
static inline int table_grow(Table *table, size_t width)
{
    uint32_t room = table->room ? 2 * table->room : ROOM_MIN;
    uint32_t *buckets = room > ROOM_MAX ? NULL : malloc(room * sizeof(uint32_t));
    char *items = buckets == NULL ? NULL : realloc(table->items, room * width);
    if (items == NULL) {
        free(buckets);
        PyErr_NoMemory();
        return -1;
    }
    free(table->buckets);
    table->items = items;
    table->buckets = buckets;
    table->room = room;
    table->shift = 64 - __builtin_ctz(room);
    memset(buckets, 0xFF, room * sizeof(uint32_t));
    for (uint32_t place = 0; place < table->used; place++) {
        Item *item = item_at(table, width, place);
        uint32_t *bucket = bucket_of(table, item->number);
        item->chain = *bucket;
        *bucket = place;
    }
    return 0;
}

/* Add a new number with a zeroed entry. Return its place, or NONE with an error. */
static inline uint32_t table_add(Table *table, size_t width, int64_t number)
{
    uint32_t place = table->free;
    if (place != NONE)
        table->free = item_at(table, width, place)->chain;
    else if (table->used == table->room && table_grow(table, width) < 0)
        return NONE;
    else
        place = table->used++;
    Item *item = item_at(table, width, place);
    uint32_t *bucket = bucket_of(table, number);
    memset(item, 0, width);
    item->number = number;
    item->chain = *bucket;
    *bucket = place;
    table->count++;
    return place;
}

/* Remove the item of a place. Its entry stays readable until the next one is added. */
static inline void table_remove(Table *table, size_t width, uint32_t place)
{
    Item *item = item_at(table, width, place);
    uint32_t *link = bucket_of(table, item->number);
    while (*link != place)
        link = &item_at(table, width, *link)->chain;
    *link = item->chain;
    item->chain = table->free;
    table->free = place;
    table->count--;
}

static inline size_t table_bytes(const Table *table, size_t width)
{
    return table->room * (width + sizeof(uint32_t));
}

static inline void table_clear(Table *table)
{
    free(table->items);
    free(table->buckets);
    *table = TABLE_EMPTY;
}

/* Release the memory of an empty table. */
static inline void table_tidy(Table *table)
{
    if (!table->count && table->room > ROOM_MIN)
        table_clear(table);
}
