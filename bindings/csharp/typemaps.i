/* C#: handles are SafeHandles, so that none goes while a call is using it; arrays are pinned by the marshaller and
 * their counts are arguments of their own; text is bytes of UTF-8. A call that fails returns a record of its error,
 * which Error.Check throws; KVC_E_BUFFER_TOO_SMALL is returned, as the facade asks again. All of it is internal. */
%pragma(csharp) moduleclassmodifiers="internal static class"
%pragma(csharp) imclassclassmodifiers="internal static class"
%typemap(csclassmodifiers) SWIGTYPE "internal class"
%csconst(1);

%typemap(ctype, out="void *") kvc_status "int"
%typemap(imtype, out="global::System.IntPtr") kvc_status "int"
%typemap(cstype) kvc_status "int"
%typemap(csin) kvc_status "$csinput"
%typemap(in) kvc_status { $1 = $input; }
%typemap(out) kvc_status { $result = kvc_error_record_take($1); }
%typemap(csout, excode="") kvc_status { return Error.Check($imcall); }

/* What the marshaller passes as a pointer, as it is. */
%define KVC_POINTER(CSTYPE, ATTRIBUTES, ARGS...)
%typemap(ctype) ARGS "void *"
%typemap(imtype, inattributes=ATTRIBUTES) ARGS "CSTYPE"
%typemap(cstype) ARGS "CSTYPE"
%typemap(csin) ARGS "$csinput"
%typemap(in) ARGS { $1 = ($1_ltype)$input; }
%enddef
#define KVC_READ "[global::System.Runtime.InteropServices.In]"
#define KVC_FILL "[global::System.Runtime.InteropServices.In, global::System.Runtime.InteropServices.Out]"
KVC_POINTER(byte[], KVC_READ, const char *, const uint8_t *)
KVC_POINTER(int[], KVC_READ, const int32_t *, const int32_t *IN_ROW)
KVC_POINTER(float[], KVC_READ, const float *, const float *IN_ROW)
KVC_POINTER(byte[], KVC_FILL, char *, uint8_t *)
KVC_POINTER(int[], KVC_FILL, int32_t *, int32_t *OUT_ROW, kvc_status *, kvc_status *OUT_ROW)
KVC_POINTER(float[], KVC_FILL, float *)
KVC_POINTER(global::System.IntPtr[], KVC_READ, kvc_session *const *)
KVC_POINTER(global::System.IntPtr, "", kvc_error_record *, const uint8_t *kept)
%typemap(imtype, out="global::System.IntPtr", inattributes=KVC_READ) const char * "byte[]"
%typemap(cstype, out="global::System.IntPtr") const char * "byte[]"
%typemap(out) const char * { $result = (void *)$1; }
%typemap(csout, excode="") const char * { return $imcall; }

%define KVC_OUT(CTYPE, CSTYPE)
%typemap(ctype) CTYPE *OUT, CTYPE *N_OUT "CTYPE *"
%typemap(imtype) CTYPE *OUT, CTYPE *N_OUT "out CSTYPE"
%typemap(cstype) CTYPE *OUT, CTYPE *N_OUT "out CSTYPE"
%typemap(csin) CTYPE *OUT, CTYPE *N_OUT "out $csinput"
%typemap(in) CTYPE *OUT, CTYPE *N_OUT { $1 = $input; *$1 = 0; }
%enddef
KVC_OUT(int32_t, int)
KVC_OUT(int64_t, long)
KVC_OUT(double, double)

%define KVC_HANDLE(TYPE, CSNAME, NOUN)
%typemap(ctype) TYPE *, TYPE **OUT "void *"
%typemap(imtype) TYPE * "CSNAME"
%typemap(cstype) TYPE * "CSNAME"
%typemap(csin) TYPE * "$csinput"
%typemap(in) TYPE * { $1 = ($1_ltype)$input; }
%typemap(imtype) TYPE **OUT "out CSNAME"
%typemap(cstype) TYPE **OUT "out CSNAME"
%typemap(csin) TYPE **OUT "out $csinput"
%typemap(in) TYPE **OUT { $1 = ($1_ltype)$input; }
/* What ReleaseHandle calls: it has a pointer, as the handle itself is on its way out. */
KVC_POINTER(global::System.IntPtr, "", TYPE *OWNED)
%ignore kvc_##NOUN##_close;
%rename(kvc_##NOUN##_close) kvc_flat_close_##NOUN;
%inline %{
static void kvc_flat_close_##NOUN(TYPE *OWNED) { kvc_##NOUN##_close(OWNED); }
%}
%enddef
KVC_HANDLE(kvc_model, ModelHandle, model)
KVC_HANDLE(kvc_policy, PolicyHandle, policy)
KVC_HANDLE(kvc_session, SessionHandle, session)
KVC_HANDLE(kvc_loader, LoaderHandle, loader)
