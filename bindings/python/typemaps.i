/* Python: handles are capsules, arrays come through the buffer protocol and are not copied where their elements fit, a
 * failed kvc_status raises what the facade makes of it. The GIL is free during every call (-threads). Outputs of one
 * number are returned. All of it is the module kvc._flat, which only the facade imports. */
%begin %{
#define PY_SSIZE_T_CLEAN
#include <float.h>
#include <math.h>
%}

%{
/* One array: a view of the caller's buffer, or a copy of a sequence. */
typedef struct {
  Py_buffer view;
  void *copy;
} kvc_py_array;
#define KVC_PY_ARRAY {{0}, NULL}

static void kvc_py_array_free(kvc_py_array *array) {
  PyBuffer_Release(&array->view); /* nothing for a view that is none */
  free(array->copy);
}

/* Whether a buffer has elements of 'i' int32_t, 'w' words of 32 bits with a sign or without, 'f' float or 'B' bytes. */
static int kvc_py_fits(const Py_buffer *view, char kind) {
  const char *format = view->format ? view->format : "B";
  if (kind == 'B') return view->itemsize == 1;
  if (*format == '@' || *format == '=' || *format == (PY_LITTLE_ENDIAN ? '<' : '>')) ++format;
  if (view->itemsize != 4 || format[0] == '\0' || format[1] != '\0') return 0;
  if (kind == 'w' && (*format == 'I' || *format == 'L')) return 1;
  return kind == 'f' ? *format == 'f' : *format == 'i' || *format == 'l';
}

/* What a call returns so far, NULL or None being nothing, with an output more: that alone, or a list. Takes both.
 * SWIG's own function changed its parameters in 4.3, and what it does with None. */
static PyObject *kvc_py_output(PyObject *result, PyObject *output) {
  PyObject *list;
  int failed;
  if (!output || !result || result == Py_None) {
    Py_XDECREF(result);
    return output; /* NULL: its error is set */
  }
  if (PyList_Check(result)) {
    failed = PyList_Append(result, output);
    Py_DECREF(output);
    if (failed) Py_CLEAR(result);
    return result;
  }
  list = PyList_New(2);
  if (!list) {
    Py_DECREF(result);
    Py_DECREF(output);
    return NULL;
  }
  PyList_SET_ITEM(list, 0, result);
  PyList_SET_ITEM(list, 1, output);
  return list;
}

/* An integer, of this package's users or of numpy, in [least, most]; a float is none. what: its name, or "". */
static int kvc_py_integer(PyObject *from, const char *what, int64_t least, int64_t most, int64_t *value) {
  PyObject *number = PyNumber_Index(from);
  int overflow = 0;
  if (!number) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) return -1;
    PyErr_Format(PyExc_TypeError, "%s%san integer is expected, not %.100s", what, *what ? ": " : "",
                 Py_TYPE(from)->tp_name);
    return -1;
  }
  *value = PyLong_AsLongLongAndOverflow(number, &overflow);
  Py_DECREF(number);
  if (overflow || *value < least || *value > most) {
    PyErr_Format(PyExc_OverflowError, "%s%sa number does not fit %d bits", what, *what ? ": " : "",
                 most > UINT32_MAX ? 64 : 32);
    return -1;
  }
  return 0;
}

static int kvc_py_float(PyObject *from, const char *what, float *value) {
  double number = PyFloat_AsDouble(from);
  if (number == -1.0 && PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) return -1;
    PyErr_Format(PyExc_TypeError, "%s%sa number is expected, not %.100s", what, *what ? ": " : "",
                 Py_TYPE(from)->tp_name);
    return -1;
  }
  if (isfinite(number) && fabs(number) > FLT_MAX) {
    PyErr_Format(PyExc_OverflowError, "%s%sa number does not fit a float", what, *what ? ": " : "");
    return -1;
  }
  *value = (float)number;
  return 0;
}

static int kvc_py_element(PyObject *from, char kind, void *array, Py_ssize_t i) {
  int64_t value = 0;
  if (kind == 'f') return kvc_py_float(from, "", (float *)array + i);
  if (kvc_py_integer(from, "", INT32_MIN, kind == 'w' ? UINT32_MAX : INT32_MAX, &value)) return -1;
  ((uint32_t *)array)[i] = (uint32_t)value;
  return 0;
}

static int kvc_py_sequence(PyObject *from, char kind, kvc_py_array *array, void **data, Py_ssize_t *n) {
  if (kind == 'B' || PyUnicode_Check(from) || PyBytes_Check(from) || PyByteArray_Check(from)) {
    PyErr_Format(PyExc_TypeError, kind == 'B' ? "str or bytes expected, not %.100s" : "numbers expected, not %.100s",
                 Py_TYPE(from)->tp_name);
    return -1;
  }
  PyObject *items = PySequence_Tuple(from); /* of its own: converting an element may run code that changes the list */
  if (!items) return -1;
  int failed = 0;
  *n = PyTuple_GET_SIZE(items);
  *data = array->copy = malloc((size_t)*n * 4 + 1);
  if (!*data) {
    PyErr_NoMemory();
    failed = -1;
  }
  for (Py_ssize_t i = 0; i < *n && !failed; ++i) {
    failed = kvc_py_element(PyTuple_GET_ITEM(items, i), kind, *data, i);
  }
  Py_DECREF(items);
  return failed;
}

/* Refuses what has rows: which of them is meant, or all, nobody said. */
static int kvc_py_is_row(PyObject *from) {
  Py_buffer view;
  int n_dimensions;
  if (!PyObject_CheckBuffer(from)) return 1;
  if (PyObject_GetBuffer(from, &view, PyBUF_STRIDED_RO | PyBUF_FORMAT)) {
    PyErr_Clear();
    return 1;
  }
  n_dimensions = view.ndim;
  PyBuffer_Release(&view);
  if (n_dimensions == 1) return 1;
  PyErr_Format(PyExc_TypeError, "a row of numbers is expected, not an array of %d dimensions", n_dimensions);
  return 0;
}

/* Elements that are read. */
static int kvc_py_read(PyObject *from, char kind, int64_t most, kvc_py_array *array, void **data, int64_t *n_out) {
  Py_ssize_t n = 0;
  if (kind != 'B' && !kvc_py_is_row(from)) return -1;
  if (kind == 'B' && PyUnicode_Check(from)) { /* lone surrogates have no UTF-8 and raise */
    *data = (void *)PyUnicode_AsUTF8AndSize(from, &n);
    if (!*data) return -1;
  } else if (PyObject_CheckBuffer(from) &&
             PyObject_GetBuffer(from, &array->view, PyBUF_ND | PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) == 0 &&
             kvc_py_fits(&array->view, kind)) {
    *data = array->view.buf;
    n = array->view.len / array->view.itemsize;
  } else {
    PyErr_Clear();
    PyBuffer_Release(&array->view);
    if (kvc_py_sequence(from, kind, array, data, &n)) return -1;
  }
  if (n > most) {
    PyErr_SetString(PyExc_OverflowError, "more elements than 32 bits count");
    return -1;
  }
  *n_out = n;
  return 0;
}

/* Elements that are written; None is none. */
static int kvc_py_fill(PyObject *into, char kind, int64_t most, kvc_py_array *array, void **data, int64_t *cap) {
  *data = NULL;
  *cap = 0;
  if (into == Py_None) return 0;
  if (PyObject_GetBuffer(into, &array->view, PyBUF_ND | PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE)) return -1;
  if (!kvc_py_fits(&array->view, kind)) {
    PyErr_Format(PyExc_TypeError, "a buffer of %s expected, this one has elements '%.20s' of %zd bytes",
                 kind == 'i' ? "int32" : kind == 'f' ? "float32" : "bytes",
                 array->view.format ? array->view.format : "B", array->view.itemsize);
    return -1;
  }
  *data = array->view.buf;
  *cap = array->view.len / array->view.itemsize;
  if (*cap > most) *cap = most;
  return 0;
}

/* UTF-8 with a NUL; NULL for None. */
static int kvc_py_string(PyObject *from, char **text) {
  Py_ssize_t n = 0;
  *text = NULL;
  if (from == Py_None) return 0;
  if (PyBytes_Check(from)) return PyBytes_AsStringAndSize(from, text, NULL); /* raises for a NUL inside */
  *text = (char *)PyUnicode_AsUTF8AndSize(from, &n);
  if (!*text) return -1;
  if (strlen(*text) != (size_t)n) {
    PyErr_SetString(PyExc_ValueError, "embedded null character");
    return -1;
  }
  return 0;
}

static PyObject *kvc_py_error; /* (status, text) -> exception */

/* On the thread of the call, before it makes another: the text is still that of this failure. */
static void kvc_py_raise(kvc_status status) {
  const char *text = kvc_last_error();
  PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
  PyObject *made = message && kvc_py_error ? PyObject_CallFunction(kvc_py_error, "iO", (int)status, message) : NULL;
  Py_XDECREF(message);
  if (!made) {
    if (!PyErr_Occurred()) PyErr_Format(PyExc_RuntimeError, "libkvc status %d: %s", (int)status, text);
    return;
  }
  PyErr_SetObject((PyObject *)Py_TYPE(made), made);
  Py_DECREF(made);
}
%}

/* The facade asks again with the count that comes back, so too small a buffer is no error, but where there is none. */
%typemap(out) kvc_status {
  if ($1 != KVC_OK && $1 != KVC_E_BUFFER_TOO_SMALL) {
    kvc_py_raise($1);
    SWIG_fail;
  }
  $result = SWIG_Py_Void();
}
%typemap(out) kvc_status kvc_flat_batch_logits {
  if ($1 != KVC_OK) {
    kvc_py_raise($1);
    SWIG_fail;
  }
  $result = SWIG_Py_Void();
}

/* A signal's exception may come between a call that makes a handle and whoever would take it: a capsule that is dropped
 * closes. TYPE_close of the interface takes that from it, before it frees. */
%define KVC_HANDLE(TYPE)
%{
static void TYPE##_dropped(PyObject *capsule) { TYPE##_close((TYPE *)PyCapsule_GetPointer(capsule, #TYPE)); }
%}
%typemap(in) TYPE * {
  $1 = $input == Py_None ? NULL : (TYPE *)PyCapsule_GetPointer($input, #TYPE);
  if (!$1 && $input != Py_None) SWIG_fail;
  if ($1 && strcmp("$symname", #TYPE "_close") == 0) PyCapsule_SetDestructor($input, NULL);
}
%typemap(in, numinputs=0) TYPE **OUT (TYPE *made = NULL) { $1 = &made; }
%typemap(argout) TYPE **OUT {
  $result = kvc_py_output($result, PyCapsule_New(*$1, #TYPE, TYPE##_dropped));
}
%enddef
KVC_HANDLE(kvc_model)
KVC_HANDLE(kvc_policy)
KVC_HANDLE(kvc_session)
KVC_HANDLE(kvc_loader)

/* Numbers of Python and of numpy alike. The names of the parameters are in the messages. */
%typemap(in) int32_t (int64_t number) {
  if (kvc_py_integer($input, "$1_name", INT32_MIN, INT32_MAX, &number)) SWIG_fail;
  $1 = (int32_t)number;
}
%typemap(in) int64_t (int64_t number) {
  if (kvc_py_integer($input, "$1_name", INT64_MIN, INT64_MAX, &number)) SWIG_fail;
  $1 = number;
}
%typemap(in) float { if (kvc_py_float($input, "$1_name", &$1)) SWIG_fail; }

%typemap(in) const char * { if (kvc_py_string($input, &$1)) SWIG_fail; }
%typemap(freearg) const char * ""

%define KVC_READ(KIND, MOST, POINTER, P, COUNT, N)
%typemap(in) (POINTER P, COUNT N) (kvc_py_array array = KVC_PY_ARRAY, void *data = NULL, int64_t n = 0) {
  if (kvc_py_read($input, KIND, MOST, &array, &data, &n)) SWIG_fail;
  $1 = data;
  $2 = (COUNT)n;
}
%typemap(freearg) (POINTER P, COUNT N) { kvc_py_array_free(&array$argnum); }
%enddef
KVC_READ('i', INT32_MAX, const int32_t *, IN, int32_t, N)
KVC_READ('w', INT32_MAX, const int32_t *, WORDS, int32_t, N)
KVC_READ('f', INT32_MAX, const float *, IN, int32_t, N)
KVC_READ('B', INT32_MAX, const uint8_t *, IN, int32_t, N)
KVC_READ('B', INT64_MAX, const uint8_t *, IN, int64_t, N)
KVC_READ('B', INT64_MAX, const uint8_t *, KEPT, int64_t, N)

%define KVC_FILL(KIND, MOST, POINTER, P, COUNT, N)
%typemap(in) (POINTER P, COUNT N) (kvc_py_array array = KVC_PY_ARRAY, void *data = NULL, int64_t n = 0) {
  if (kvc_py_fill($input, KIND, MOST, &array, &data, &n)) SWIG_fail;
  $1 = data;
  $2 = (COUNT)n;
}
%typemap(argout) (POINTER P, COUNT N) ""
%typemap(freearg) (POINTER P, COUNT N) { kvc_py_array_free(&array$argnum); }
%enddef
KVC_FILL('i', INT32_MAX, int32_t *, BUF, int32_t, CAP)
KVC_FILL('f', INT32_MAX, float *, BUF, int32_t, CAP)
KVC_FILL('B', INT32_MAX, uint8_t *, BUF, int32_t, CAP)
KVC_FILL('B', INT32_MAX, char *, BUF, int32_t, CAP)
KVC_FILL('f', INT64_MAX, float *, BUF, int64_t, CAP)
KVC_FILL('B', INT64_MAX, uint8_t *, BUF, int64_t, CAP)

%define KVC_ROW(HOW, KIND, POINTER, P)
%typemap(in) POINTER P (kvc_py_array array = KVC_PY_ARRAY, void *data = NULL, int64_t n = 0) {
  if (HOW($input, KIND, INT32_MAX, &array, &data, &n)) SWIG_fail;
  $1 = data;
}
%typemap(argout) POINTER P ""
%typemap(freearg) POINTER P { kvc_py_array_free(&array$argnum); }
%enddef
KVC_ROW(kvc_py_read, 'i', const int32_t *, IN_ROW)
KVC_ROW(kvc_py_read, 'f', const float *, IN_ROW)
KVC_ROW(kvc_py_fill, 'i', int32_t *, OUT_ROW)
KVC_ROW(kvc_py_fill, 'i', kvc_status *, OUT_ROW)

%typemap(in) (kvc_session *const *SESSIONS, int32_t N) (kvc_session **array = NULL) {
  if (!PyTuple_Check($input) || PyTuple_GET_SIZE($input) > INT32_MAX) {
    PyErr_SetString(PyExc_TypeError, "a tuple of sessions expected");
    SWIG_fail;
  }
  $2 = (int32_t)PyTuple_GET_SIZE($input);
  $1 = array = (kvc_session **)malloc(((size_t)$2 + 1) * sizeof *array);
  if (!array) {
    PyErr_NoMemory();
    SWIG_fail;
  }
  for (int32_t i = 0; i < $2; ++i) {
    array[i] = (kvc_session *)PyCapsule_GetPointer(PyTuple_GET_ITEM($input, i), "kvc_session");
    if (!array[i]) SWIG_fail;
  }
}
%typemap(freearg) (kvc_session *const *SESSIONS, int32_t N) { free(array$argnum); }

%define KVC_NUMBER(TYPE, NAME, MAKE)
%typemap(in, numinputs=0) TYPE *NAME (TYPE number = 0) { $1 = &number; }
%typemap(argout) TYPE *NAME { $result = kvc_py_output($result, MAKE(*$1)); }
%enddef
KVC_NUMBER(int32_t, N_OUT, PyLong_FromLong)
KVC_NUMBER(int64_t, N_OUT, PyLong_FromLongLong)
KVC_NUMBER(int32_t, OUT, PyLong_FromLong)
KVC_NUMBER(int64_t, OUT, PyLong_FromLongLong)
KVC_NUMBER(double, OUT, PyFloat_FromDouble)

%feature("nothreadallow") kvc_py_set_error;
%feature("nothreadallow") kvc_py_address;
%inline %{
static void kvc_py_set_error(PyObject *factory) {
  Py_INCREF(factory);
  Py_XSETREF(kvc_py_error, factory);
}

/* Where the bytes of a buffer lie. */
static PyObject *kvc_py_address(PyObject *buffer) {
  Py_buffer view;
  if (PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)) return NULL;
  PyObject *address = PyLong_FromVoidPtr(view.buf);
  PyBuffer_Release(&view);
  return address;
}
%}
