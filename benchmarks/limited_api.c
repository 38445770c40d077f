/* Reads the arguments of a collective as the bindings do: an object of a known type, integers of
 * one digit and keywords by their identity. Compiled with Py_LIMITED_API and without. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef Py_LIMITED_API
#define NAME "limited"
#define INIT PyInit_limited
#define ITEM PyTuple_GetItem
#define SIZE PyTuple_Size
#define VALUE PyLong_AsLong
#else
#define NAME "full"
#define INIT PyInit_full
#define ITEM PyTuple_GET_ITEM
#define SIZE PyTuple_GET_SIZE
static long value(PyObject* object) {
#if PY_VERSION_HEX >= 0x030c0000
  PyLongObject* integer = (PyLongObject*)object;
  return PyUnstable_Long_IsCompact(integer) ? PyUnstable_Long_CompactValue(integer) : -1;
#elif PY_VERSION_HEX >= 0x030b0000
  return Py_SIZE(object) == 1 ? (long)((PyLongObject*)object)->ob_digit[0] : 0;
#else
  return PyLong_AsLong(object);
#endif
}
#define VALUE value
#endif

static PyObject *root, *stream;

static PyObject* call(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  long sum = 0;
  (void)self;
  for (Py_ssize_t i = 1; i < nargs; ++i) {
    if (!PyLong_Check(args[i])) return PyErr_Format(PyExc_TypeError, "argument %zd", i);
    sum += VALUE(args[i]);
  }
  const Py_ssize_t count = names ? SIZE(names) : 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* name = ITEM(names, i);
    if (name != root && name != stream) return PyErr_Format(PyExc_TypeError, "keyword %R", name);
    if (!PyLong_Check(args[nargs + i])) return PyErr_Format(PyExc_TypeError, "keyword %R", name);
    sum += VALUE(args[nargs + i]);
  }
  if (sum < 0 || !PyTuple_Check(args[0])) return PyErr_Format(PyExc_ValueError, "sum %ld", sum);
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"call", (PyCFunction)(void (*)(void))call, METH_FASTCALL | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, NAME, NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC INIT(void) {
  root = PyUnicode_InternFromString("root");
  stream = PyUnicode_InternFromString("stream");
  return PyModule_Create(&module);
}
