/* Finds many fixed texts in one pass over a block of bytes, ignoring the case of ASCII letters.
 *
 * Every text has a chosen window of eight bytes. The five bytes at each of the window's first four positions go
 * into a filter by hash (two bits of one word, so that a miss costs one load); a scan looks at every fourth
 * position only, so one of the four is always met. What passes the filter is looked up in a hash table and the
 * whole text is compared. The cost per byte does not depend on the number of texts as long as the filter stays
 * sparse, and it is sized for that.
 *
 * Limited API of CPython 3.10: one binary for all later versions.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define WINDOW 8
#define STRIDE 4
#define KEY 5 /* bytes hashed: STRIDE + KEY - 1 == WINDOW */
#define KEY_BITS 0xFFFFFFFFFFull
#define FOLD 0x2020202020ull

typedef struct {
    uint32_t texts, bits, entries, unused;
    uint64_t at_filter, at_heads, at_entries, at_texts, at_bytes, size;
} Header;

typedef struct {
    uint64_t key;
    uint32_t text, back, next, unused; /* next: index of entry + 1, 0 at the end of the chain */
} Entry;

typedef struct {
    uint32_t at, length;
} Text;

/* Five bytes as a number; reads eight, so the caller sees to it that they are there. Little or big endian
 * gives other keys, the same for building and scanning. */
static inline uint64_t load_key(const unsigned char *p) {
    uint64_t word;
    memcpy(&word, p, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word >>= 24;
#endif
    return (word & KEY_BITS) | FOLD;
}

static inline uint64_t load_key_near_end(const unsigned char *p, const unsigned char *end) {
    unsigned char copy[8] = {0};
    memcpy(copy, p, (size_t)(end - p) < 8 ? (size_t)(end - p) : 8);
    return load_key(copy);
}

static inline uint32_t hashed(uint64_t key) { return (uint32_t)((key * 0x9E3779B97F4A7C15ull) >> 32); }

static inline uint32_t two_bits(uint32_t hash) { return (1u << (hash & 31)) | (1u << ((hash >> 5) & 31)); }

static int same(const unsigned char *data, const unsigned char *text, uint32_t length) {
    for (uint32_t i = 0; i < length; i++)
        if ((data[i] | 0x20) != text[i]) return 0;
    return 1;
}

static uint32_t bits_for(uint32_t count, uint32_t least) {
    uint32_t bits = least;
    while (bits < 22 && ((uint64_t)1 << bits) < (uint64_t)count) bits++;
    return bits;
}

static PyObject *build(PyObject *self, PyObject *args) {
    PyObject *texts;
    if (!PyArg_ParseTuple(args, "O!", &PyList_Type, &texts)) return NULL;
    Py_ssize_t count = PyList_Size(texts);
    uint64_t total = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *bytes;
        Py_ssize_t window;
        if (!PyArg_ParseTuple(PyList_GetItem(texts, i), "O!n", &PyBytes_Type, &bytes, &window)) return NULL;
        Py_ssize_t length = PyBytes_Size(bytes);
        if (window < 0 || length - window < WINDOW) {
            PyErr_SetString(PyExc_ValueError, "the window does not lie inside the text");
            return NULL;
        }
        total += (uint64_t)length;
    }
    Header h;
    memset(&h, 0, sizeof h);
    h.texts = (uint32_t)count;
    h.entries = (uint32_t)count * STRIDE;
    h.bits = bits_for(h.entries, 12);
    h.at_filter = sizeof(Header);
    h.at_heads = h.at_filter + 4 * ((uint64_t)1 << h.bits); /* all parts are multiples of eight */
    h.at_entries = h.at_heads + 4 * ((uint64_t)1 << h.bits);
    h.at_texts = h.at_entries + sizeof(Entry) * h.entries;
    h.at_bytes = h.at_texts + sizeof(Text) * h.texts;
    h.size = h.at_bytes + total;

    PyObject *table = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)h.size);
    if (table == NULL) return NULL;
    unsigned char *base = (unsigned char *)PyBytes_AsString(table);
    memset(base, 0, h.size);
    memcpy(base, &h, sizeof h);
    uint32_t *heads = (uint32_t *)(base + h.at_heads), *filter = (uint32_t *)(base + h.at_filter);
    Entry *entries = (Entry *)(base + h.at_entries);
    Text *spans = (Text *)(base + h.at_texts);
    uint32_t at = 0, used = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = PyList_GetItem(texts, i);
        PyObject *bytes = PyTuple_GetItem(pair, 0);
        uint32_t window = (uint32_t)PyLong_AsLong(PyTuple_GetItem(pair, 1));
        uint32_t length = (uint32_t)PyBytes_Size(bytes);
        const unsigned char *from = (const unsigned char *)PyBytes_AsString(bytes);
        unsigned char *to = base + h.at_bytes + at;
        for (uint32_t k = 0; k < length; k++) to[k] = from[k] | 0x20;
        spans[i].at = at;
        spans[i].length = length;
        for (uint32_t shift = 0; shift < STRIDE; shift++) {
            uint64_t key = load_key_near_end(to + window + shift, to + length);
            uint32_t hash = hashed(key);
            uint32_t bucket = hash >> (32 - h.bits);
            filter[bucket] |= two_bits(hash);
            entries[used].key = key;
            entries[used].text = (uint32_t)i;
            entries[used].back = window + shift;
            entries[used].next = heads[bucket];
            heads[bucket] = ++used;
        }
        at += length;
    }
    return table;
}

typedef struct {
    Py_ssize_t offset;
    uint32_t text;
} Hit;

typedef struct {
    const unsigned char *base, *bytes, *silent;
    const uint32_t *heads, *filter;
    const Entry *entries;
    const Text *spans;
    Py_ssize_t size;
    uint32_t shift;
    Header h;
    Hit *hits;
    Py_ssize_t count, most;
} Scan;

/* Whether what stands at a position may be part of a text. */
static inline uint32_t passes(const Scan *s, uint64_t key) {
    uint32_t hash = hashed(key), bits = two_bits(hash);
    return (s->filter[hash >> s->shift] & bits) == bits;
}

/* Notes the texts that stand around position i, as many as there is room for. */
static void note(Scan *s, Py_ssize_t i, uint64_t key) {
    for (uint32_t at = s->heads[hashed(key) >> s->shift]; at; at = s->entries[at - 1].next) {
        const Entry *e = &s->entries[at - 1];
        if (e->key != key || s->silent[e->text] || s->count == s->most) continue;
        Py_ssize_t from = i - (Py_ssize_t)e->back;
        const Text *t = &s->spans[e->text];
        if (from < 0 || from + (Py_ssize_t)t->length > s->size) continue;
        if (!same(s->bytes + from, s->base + s->h.at_bytes + t->at, t->length)) continue;
        s->hits[s->count].offset = from;
        s->hits[s->count++].text = e->text;
    }
}

/* Looks at every STRIDE-th position from start to end and returns where it stopped for want of room. */
static Py_ssize_t look(Scan *s, Py_ssize_t start, Py_ssize_t end) {
    const Py_ssize_t room = s->most - 64; /* more than can stand at the eight positions looked at together */
    Py_ssize_t i = start;
    while (i < end && i + KEY <= s->size && s->count < room) {
        if (i + 8 * STRIDE > end || i + 8 * STRIDE + 8 > s->size) { /* the last few positions, one by one */
            uint64_t key =
                i + 8 <= s->size ? load_key(s->bytes + i) : load_key_near_end(s->bytes + i, s->bytes + s->size);
            if (passes(s, key)) note(s, i, key);
            i += STRIDE;
            continue;
        }
        uint32_t passing = 0; /* eight positions without a branch */
        for (int k = 0; k < 8; k++) passing |= passes(s, load_key(s->bytes + i + k * STRIDE)) << k;
        for (int k = 0; passing; k++, passing >>= 1)
            if (passing & 1) note(s, i + k * STRIDE, load_key(s->bytes + i + k * STRIDE));
        i += 8 * STRIDE;
    }
    return i + KEY > s->size || i > end ? end : i;
}

static PyObject *listed(const Scan *s) {
    PyObject *hits = PyList_New(s->count);
    for (Py_ssize_t k = 0; hits != NULL && k < s->count; k++) {
        PyObject *hit = Py_BuildValue("nI", s->hits[k].offset, s->hits[k].text);
        if (hit == NULL) Py_CLEAR(hits);
        else PyList_SetItem(hits, k, hit);
    }
    return hits;
}

/* scan(table, data, start, end, muted, most) -> ([(offset, text), ...], where to go on)
 *
 * Texts are reported by a position inside them: each text is met once by scans of adjoining stretches whose
 * starts differ by a multiple of STRIDE. The interpreter is free meanwhile, so stretches can be scanned side by side.
 */
static PyObject *scan(PyObject *self, PyObject *args) {
    PyObject *table, *data, *muted;
    Py_ssize_t start, end;
    Scan s;
    memset(&s, 0, sizeof s);
    if (!PyArg_ParseTuple(args, "O!O!nnO!n", &PyBytes_Type, &table, &PyBytes_Type, &data, &start, &end,
                          &PyByteArray_Type, &muted, &s.most))
        return NULL;
    s.base = (const unsigned char *)PyBytes_AsString(table);
    s.size = PyBytes_Size(data);
    if ((size_t)PyBytes_Size(table) >= sizeof(Header)) memcpy(&s.h, s.base, sizeof s.h);
    if (s.h.size == 0 || (uint64_t)PyBytes_Size(table) != s.h.size || s.most < 128 ||
        PyByteArray_Size(muted) < (Py_ssize_t)s.h.texts || start < 0 || end > s.size) {
        PyErr_SetString(PyExc_ValueError, "the arguments do not fit together");
        return NULL;
    }
    s.bytes = (const unsigned char *)PyBytes_AsString(data);
    s.silent = (const unsigned char *)PyByteArray_AsString(muted);
    s.heads = (const uint32_t *)(s.base + s.h.at_heads);
    s.filter = (const uint32_t *)(s.base + s.h.at_filter);
    s.entries = (const Entry *)(s.base + s.h.at_entries);
    s.spans = (const Text *)(s.base + s.h.at_texts);
    s.shift = 32 - s.h.bits;
    s.hits = PyMem_Malloc(sizeof(Hit) * (size_t)s.most);
    if (s.hits == NULL) return PyErr_NoMemory();
    Py_ssize_t next;
    Py_BEGIN_ALLOW_THREADS
    next = look(&s, start, end);
    Py_END_ALLOW_THREADS
    PyObject *hits = listed(&s);
    PyMem_Free(s.hits);
    return hits == NULL ? NULL : Py_BuildValue("Nn", hits, next);
}

/* newlines(data, start, end) -> how many "\n" lie between */
static PyObject *newlines(PyObject *self, PyObject *args) {
    PyObject *data;
    Py_ssize_t start, end;
    if (!PyArg_ParseTuple(args, "O!nn", &PyBytes_Type, &data, &start, &end)) return NULL;
    if (start < 0 || end > PyBytes_Size(data)) {
        PyErr_SetString(PyExc_ValueError, "outside the data");
        return NULL;
    }
    const unsigned char *bytes = (const unsigned char *)PyBytes_AsString(data);
    Py_ssize_t count = 0, i = start;
    while (i < end) { /* short runs, so that a byte-wide counter vectorises */
        Py_ssize_t stop = end - i > 255 ? i + 255 : end;
        unsigned char few = 0;
        for (; i < stop; i++) few += bytes[i] == '\n';
        count += few;
    }
    return PyLong_FromSsize_t(count);
}

static PyMethodDef methods[] = {
    {"build", build, METH_VARARGS, "build([(text, window), ...]) -> table"},
    {"scan", scan, METH_VARARGS, "scan(table, data, start, end, muted, most) -> (hits, next)"},
    {"newlines", newlines, METH_VARARGS, "newlines(data, start, end) -> count"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernel", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModule_Create(&module); }
