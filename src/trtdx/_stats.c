/* Statistics of tensors in one pass over memory, and the differences between two of them.
 *
 * Arguments are addresses: the buffer protocol is not in the limited API of CPython 3.10, and a torch tensor in
 * bfloat16 has none. The interpreter is free while a tensor is measured. `capture/stats.py` and
 * `capture/difference.py` are the only callers and keep the owners of the addresses alive; beside them are the NumPy
 * versions with the same results.
 *
 * _stats_lanes.h has the loops over elements, _stats_core.h what is made of them.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_stats_core.h"

typedef struct {
    unsigned long long address, count;
    int code;
} Request;

static int fits(unsigned long long address, unsigned long long count, int code) {
    if (code >= 0 && code < CODES && (address || !count) && count < (1ull << 40)) return 1;
    PyErr_SetString(PyExc_ValueError, "no such type, no address, or too many elements");
    return 0;
}

/* The caller's thread may flush subnormals to zero (torch.set_flush_denormal) or round otherwise. */
static void measured(Request of, Row *row) {
    Scratch scratch; /* 16 KiB */
    fenv_t before;
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    measure_one((const unsigned char *)(uintptr_t)of.address, (size_t)of.count, of.code, &scratch, row);
    fesetenv(&before);
}

/* measure(rows, at, address, count, type) -> how many elements are NaN or infinite */
static PyObject *measure(PyObject *self, PyObject *args) {
    PyObject *target;
    Py_ssize_t at;
    Request of;
    Row row;
    if (!PyArg_ParseTuple(args, "O!nKKi", &PyByteArray_Type, &target, &at, &of.address, &of.count, &of.code)) return NULL;
    if (!fits(of.address, of.count, of.code)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    measured(of, &row);
    Py_END_ALLOW_THREADS
    if (at < 0 || at > PyByteArray_Size(target) - (Py_ssize_t)sizeof row) {
        PyErr_SetString(PyExc_ValueError, "the row does not fit");
        return NULL;
    }
    memcpy(PyByteArray_AsString(target) + at, &row, sizeof row);
    return PyLong_FromUnsignedLongLong(row.nan + row.positive + row.negative);
}

static double *compared(Request reference, Request candidate, size_t length, Pairs *pairs, Pair *pair) {
    size_t n = (size_t)reference.count;
    double *rows = calloc(n / length + 1, 3 * sizeof(double));
    fenv_t before;
    if (rows == NULL) return NULL;
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    compare_all((Elements){(const unsigned char *)(uintptr_t)reference.address, reference.code},
                (Elements){(const unsigned char *)(uintptr_t)candidate.address, candidate.code}, n, length, pair, pairs,
                rows);
    fesetenv(&before);
    return rows;
}

/* compare(state, address, type, address, type, count, row length) -> three doubles a row; `state` is added to */
static PyObject *compare(PyObject *self, PyObject *args) {
    PyObject *state, *answer = NULL;
    Request reference, candidate;
    Py_ssize_t length;
    Pairs pairs;
    if (!PyArg_ParseTuple(args, "O!KiKiKn", &PyByteArray_Type, &state, &reference.address, &reference.code,
                          &candidate.address, &candidate.code, &reference.count, &length))
        return NULL;
    if (!fits(reference.address, reference.count, reference.code) ||
        !fits(candidate.address, reference.count, candidate.code))
        return NULL;
    if (PyByteArray_Size(state) != sizeof pairs || length < 1) {
        PyErr_SetString(PyExc_ValueError, "the state or the row length is wrong");
        return NULL;
    }
    memcpy(&pairs, PyByteArray_AsString(state), sizeof pairs);
    double *rows = NULL;
    Pair *pair = PyMem_Malloc(sizeof(Pair));
    if (pair != NULL) {
        Py_BEGIN_ALLOW_THREADS
        rows = compared(reference, candidate, (size_t)length, &pairs, pair);
        Py_END_ALLOW_THREADS
    }
    if (rows == NULL) PyErr_NoMemory();
    else {
        size_t count = (size_t)((reference.count + (size_t)length - 1) / (size_t)length);
        answer = PyBytes_FromStringAndSize((const char *)rows, (Py_ssize_t)(count * 3 * sizeof(double)));
        if (answer != NULL && PyByteArray_Size(state) == sizeof pairs)
            memcpy(PyByteArray_AsString(state), &pairs, sizeof pairs);
    }
    free(rows);
    PyMem_Free(pair);
    return answer;
}

/* view(address, size) -> memoryview, for hashing and writing without a copy */
static PyObject *view(PyObject *self, PyObject *args) {
    unsigned long long address;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "Kn", &address, &size)) return NULL;
    if (size < 0 || (size && !address)) {
        PyErr_SetString(PyExc_ValueError, "no such memory");
        return NULL;
    }
    static char nothing[1];
    return PyMemoryView_FromMemory(size ? (char *)(uintptr_t)address : nothing, size, 0x100 /* read only */);
}

/* instructions(name) -> the instruction set in use from now on: "avx512" or "avx2" where it is wanted and there is, or
 * "plain" */
static PyObject *instructions(PyObject *self, PyObject *args) {
    const char *name, *used = "plain";
    if (!PyArg_ParseTuple(args, "s", &name)) return NULL;
    lanes = &lanes_plain;
#if defined(__x86_64__)
    if (strcmp(name, "avx512") == 0 && has_avx512()) lanes = &lanes_avx512, used = "avx512";
    if (strcmp(name, "avx2") == 0 && has_avx2()) lanes = &lanes_avx2, used = "avx2";
#endif
    return PyUnicode_FromString(used);
}

static PyMethodDef methods[] = {
    {"measure", measure, METH_VARARGS, "measure(rows, at, address, count, type) -> not finite"},
    {"compare", compare, METH_VARARGS, "compare(state, address, type, address, type, count, length) -> rows"},
    {"view", view, METH_VARARGS, "view(address, size) -> memoryview"},
    {"instructions", instructions, METH_VARARGS, "instructions(name) -> name in use"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_stats", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__stats(void) { return PyModule_Create(&module); }
