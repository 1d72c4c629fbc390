/* Go: handles are uintptr, arrays are slices, not copied (assemble.cmake says how), a kvc_status comes back as an error
 * that has its text. All of it stands in the package internal/flat, which only the facade imports;
 * internal/flat/failure.go is the other half of the errors. */
%go_import("strings")
%insert(runtime) %{
/* A failed call as the one value that its function returns: "STATUS text", made on the thread of the call, since the
 * text belongs to that thread and the goroutine may wake up on another. Without memory for it: the bare status, as
 * a length below 0. */
static _gostring_ kvc_go_failure(int status, const char *text) {
  _gostring_ out = {NULL, status};
  size_t cap = strlen(text) + 16;
  char *made = (char *)malloc(cap);
  if (made) {
    out.p = made;
    out.n = snprintf(made, cap, "%d %s", status, text);
  }
  return out;
}
%}

%typemap(gotype) kvc_status "error"
%typemap(imtype) kvc_status "string"
%typemap(out) kvc_status {
  _gostring_ none = {NULL, 0};
  $result = $1 == KVC_OK ? none : kvc_go_failure($1, kvc_last_error());
}
%typemap(goout) kvc_status %{
  if len($1) != 0 {
    $result = failure($1)
  }
%}
/* As an argument it is a number. */
%typemap(gotype) kvc_status status "int32"
%typemap(imtype) kvc_status status "int32"
%typemap(in) kvc_status status { $1 = (kvc_status)$input; }

%typemap(gotype) int32_t "int32"
%typemap(in) int32_t { $1 = (int32_t)$input; }
%typemap(out) int32_t { $result = $1; }
%typemap(goout) int32_t ""
%typemap(gotype) int64_t "int64"
%typemap(in) int64_t { $1 = (int64_t)$input; }
%typemap(out) int64_t { $result = $1; }
%typemap(goout) int64_t ""

%define KVC_HANDLE(TYPE)
%typemap(gotype) TYPE * "uintptr"
%typemap(in) TYPE * { $1 = (TYPE *)$input; }
%typemap(gotype) TYPE **OUT "*uintptr"
%typemap(in) TYPE **OUT { $1 = (TYPE **)$input; }
%enddef
KVC_HANDLE(kvc_model)
KVC_HANDLE(kvc_policy)
KVC_HANDLE(kvc_session)
KVC_HANDLE(kvc_loader)

/* The facade's end with a NUL and are read during the call; nil is NULL. Those that are returned are static. */
%typemap(gotype) const char * "*byte"
%typemap(in) const char * { $1 = (char *)$input; }
%typemap(freearg) const char * ""
%define KVC_STATIC_TEXT(FUNCTION)
%typemap(gotype) const char *FUNCTION "string"
%typemap(out) const char *FUNCTION
%{ $result.p = (char *)$1;
   $result.n = $1 ? (intgo)strlen($1) : 0; %}
%typemap(goout) const char *FUNCTION %{ $result = strings.Clone($1) %}
%enddef
KVC_STATIC_TEXT(kvc_status_name)
KVC_STATIC_TEXT(kvc_method_name)
KVC_STATIC_TEXT(kvc_flat_row_error)

%define KVC_SLICE(GO, POINTER, P, COUNT, N)
%typemap(gotype) (POINTER P, COUNT N) "[]" #GO
%typemap(in) (POINTER P, COUNT N)
%{ $1 = $input.array;
   $2 = (COUNT)$input.len == $input.len ? (COUNT)$input.len : -1; /* too many: the library refuses it */ %}
%typemap(argout) (POINTER P, COUNT N) ""
%typemap(freearg) (POINTER P, COUNT N) ""
%enddef
KVC_SLICE(int32, const int32_t *, IN, int32_t, N)
KVC_SLICE(int32, const int32_t *, WORDS, int32_t, N)
KVC_SLICE(float32, const float *, IN, int32_t, N)
KVC_SLICE(byte, const uint8_t *, IN, int32_t, N)
KVC_SLICE(byte, const uint8_t *, IN, int64_t, N)
KVC_SLICE(byte, const uint8_t *, KEPT, int64_t, N)
KVC_SLICE(int32, int32_t *, BUF, int32_t, CAP)
KVC_SLICE(float32, float *, BUF, int32_t, CAP)
KVC_SLICE(byte, uint8_t *, BUF, int32_t, CAP)
KVC_SLICE(byte, char *, BUF, int32_t, CAP)
KVC_SLICE(float32, float *, BUF, int64_t, CAP)
KVC_SLICE(byte, uint8_t *, BUF, int64_t, CAP)
KVC_SLICE(uintptr, kvc_session *const *, SESSIONS, int32_t, N)

/* As many as another parameter says. */
%define KVC_ROW(GO, POINTER, P)
%typemap(gotype) POINTER P "[]" #GO
%typemap(in) POINTER P %{ $1 = $input.array; %}
%enddef
KVC_ROW(int32, const int32_t *, IN_ROW)
KVC_ROW(float32, const float *, IN_ROW)
KVC_ROW(int32, int32_t *, OUT_ROW)
KVC_ROW(int32, kvc_status *, OUT_ROW)

/* One number, which lies in no memory of a caller's. */
%define KVC_POINTER(GO, POINTER, P)
%typemap(gotype) POINTER P "*" #GO
%typemap(in) POINTER P %{ $1 = (void *)$input; %}
%enddef
KVC_POINTER(int32, int32_t *, N_OUT)
KVC_POINTER(int64, int64_t *, N_OUT)
KVC_POINTER(int32, int32_t *, OUT)
KVC_POINTER(int64, int64_t *, OUT)
KVC_POINTER(float64, double *, OUT)
