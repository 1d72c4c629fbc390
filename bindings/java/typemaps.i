/* Java: handles are long, arrays are arrays, text is bytes of UTF-8. A call that fails throws dev.kvc.KvcException with
 * the text of the error; KVC_E_BUFFER_TOO_SMALL is returned, as the facade asks again. Array elements are copied or
 * pinned as the VM likes, never critical: a prefill would hold up its collector. All is private to the package. */
%{
/* After the arrays have been given back: JNI allows little while an exception is on its way. */
static void kvc_java_throw(JNIEnv *jenv, kvc_status status) {
  const char *text = kvc_last_error();
  jsize n_text = (jsize)strlen(text);
  jclass type = (*jenv)->FindClass(jenv, "dev/kvc/KvcException");
  jmethodID make = type ? (*jenv)->GetMethodID(jenv, type, "<init>", "(I[B)V") : NULL;
  jbyteArray bytes = make ? (*jenv)->NewByteArray(jenv, n_text) : NULL;
  jobject thrown;
  if (!bytes) return; /* the VM has thrown its own */
  (*jenv)->SetByteArrayRegion(jenv, bytes, 0, n_text, (const jbyte *)text);
  thrown = (*jenv)->NewObject(jenv, type, make, (jint)status, bytes);
  if (thrown) (*jenv)->Throw(jenv, (jthrowable)thrown);
}

/* Where no memory was had; HotSpot says nothing itself where its copy of an array finds none. */
static void kvc_java_no_memory(JNIEnv *jenv) {
  jclass type = (*jenv)->ExceptionCheck(jenv) ? NULL : (*jenv)->FindClass(jenv, "java/lang/OutOfMemoryError");
  if (type) (*jenv)->ThrowNew(jenv, type, "libkvc");
}

/* The bytes of an array with a NUL behind them, or NULL and an exception. */
static char *kvc_java_string(JNIEnv *jenv, jbyteArray bytes) {
  jsize n = (*jenv)->GetArrayLength(jenv, bytes);
  char *text = (char *)malloc((size_t)n + 1);
  if (!text) {
    kvc_java_no_memory(jenv);
    return NULL;
  }
  (*jenv)->GetByteArrayRegion(jenv, bytes, 0, n, (jbyte *)text);
  text[n] = '\0';
  return text;
}
%}

%pragma(java) moduleclassmodifiers="final class"
%pragma(java) jniclassclassmodifiers="final class"
%javaconst(1);

%typemap(jni) kvc_status "jint"
%typemap(jtype) kvc_status "int"
%typemap(jstype) kvc_status "int"
%typemap(out) kvc_status { $result = (jint)$1; }
%typemap(javaout) kvc_status { return $jnicall; }
%typemap(ret) kvc_status { if ($1 != KVC_OK && $1 != KVC_E_BUFFER_TOO_SMALL) kvc_java_throw(jenv, $1); }

/* Structs: closed by the facade, so no finalizer, which Java is about to give up. */
%typemap(javaclassmodifiers) SWIGTYPE "final class"
%typemap(javainterfaces) SWIGTYPE "AutoCloseable"
%typemap(javafinalize) SWIGTYPE ""
%typemap(javadestruct, methodname="close", methodmodifiers="public", parameters="") SWIGTYPE {
    if (swigCPtr != 0 && swigCMemOwn) {
      swigCMemOwn = false;
      $jnicall;
    }
    swigCPtr = 0;
  }
%typemap(javabody) SWIGTYPE %{
  private transient long swigCPtr;
  private transient boolean swigCMemOwn;

  $javaclassname(long cPtr, boolean cMemoryOwn) {
    if (cPtr == 0) throw new OutOfMemoryError("libkvc");
    swigCMemOwn = cMemoryOwn;
    swigCPtr = cPtr;
  }

  static long getCPtr($javaclassname obj) {
    return obj == null ? 0 : obj.swigCPtr;
  }
%}

%define KVC_HANDLE(TYPE)
%typemap(jni) TYPE * "jlong"
%typemap(jtype, nopgcpp="1") TYPE * "long"
%typemap(jstype) TYPE * "long"
%typemap(javain) TYPE * "$javainput"
%typemap(in) TYPE * { $1 = (TYPE *)(intptr_t)$input; }
%typemap(jni) TYPE **OUT "jlongArray"
%typemap(jtype) TYPE **OUT "long[]"
%typemap(jstype) TYPE **OUT "long[]"
%typemap(javain) TYPE **OUT "$javainput"
%typemap(in) TYPE **OUT (TYPE *temp = NULL) { $1 = &temp; }
%typemap(argout) TYPE **OUT {
  jlong made = (jlong)(intptr_t)temp$argnum;
  JCALL4(SetLongArrayRegion, jenv, $input, 0, 1, &made);
}
%enddef
KVC_HANDLE(kvc_model)
KVC_HANDLE(kvc_policy)
KVC_HANDLE(kvc_session)
KVC_HANDLE(kvc_loader)

/* Strings, either way. */
%typemap(jni) const char * "jbyteArray"
%typemap(jtype) const char * "byte[]"
%typemap(jstype) const char * "byte[]"
%typemap(javain) const char * "$javainput"
%typemap(javaout) const char * { return $jnicall; }
%typemap(in) const char * (char *temp = NULL) {
  if ($input && !(temp = kvc_java_string(jenv, $input))) {
    $cleanup
    return $null;
  }
  $1 = temp;
}
%typemap(freearg) const char * "free(temp$argnum);"
%typemap(out) const char * {
  if ($1) {
    jsize n_text = (jsize)strlen($1);
    $result = JCALL1(NewByteArray, jenv, n_text);
    if ($result) JCALL4(SetByteArrayRegion, jenv, $result, 0, n_text, (const jbyte *)$1);
  }
}

/* One number that comes out. */
%define KVC_OUT(CTYPE, JTYPE, JNIARRAY, JNAME)
%typemap(jni) CTYPE *OUT "JNIARRAY"
%typemap(jtype) CTYPE *OUT "JTYPE[]"
%typemap(jstype) CTYPE *OUT "JTYPE[]"
%typemap(javain) CTYPE *OUT "$javainput"
%typemap(in) CTYPE *OUT (CTYPE temp = 0) { $1 = &temp; }
%typemap(argout) CTYPE *OUT { JCALL4(Set##JNAME##ArrayRegion, jenv, $input, 0, 1, (void *)&temp$argnum); }
%enddef
KVC_OUT(int32_t, int, jintArray, Int)
KVC_OUT(int64_t, long, jlongArray, Long)
KVC_OUT(double, double, jdoubleArray, Double)
%apply int32_t *OUT { int32_t *N_OUT };
%apply int64_t *OUT { int64_t *N_OUT };

/* Arrays: ARGS are the C parameters, COUNT sets the second, where there is one. MODE says what happens behind the call:
 * nothing to the array that was read; what was written comes back. One that cannot be had lets go of the others. */
%define KVC_ARRAY(JTYPE, JNIARRAY, JNAME, ARGS, COUNT, MODE)
%typemap(jni) ARGS "JNIARRAY"
%typemap(jtype) ARGS "JTYPE[]"
%typemap(jstype) ARGS "JTYPE[]"
%typemap(javain) ARGS "$javainput"
%typemap(in, numinputs=1) ARGS {
  $1 = $input ? ($1_ltype)JCALL2(Get##JNAME##ArrayElements, jenv, $input, NULL) : NULL;
  if ($input && !$1) {
    result = KVC_E_MEMORY;
    $cleanup
    kvc_java_no_memory(jenv);
    return $null;
  }
  COUNT
}
%typemap(argout) ARGS ""
%typemap(freearg) ARGS {
  if ($1) JCALL3(Release##JNAME##ArrayElements, jenv, $input, (void *)$1, MODE);
}
%enddef
#define KVC_COUNT $2 = $input ? ($2_ltype)JCALL1(GetArrayLength, jenv, $input) : 0;
#define KVC_COPY_BACK result == KVC_OK ? 0 : JNI_ABORT
KVC_ARRAY(int, jintArray, Int, (const int32_t *IN, int32_t N), KVC_COUNT, JNI_ABORT)
KVC_ARRAY(int, jintArray, Int, (const int32_t *WORDS, int32_t N), KVC_COUNT, JNI_ABORT)
KVC_ARRAY(float, jfloatArray, Float, (const float *IN, int32_t N), KVC_COUNT, JNI_ABORT)
KVC_ARRAY(byte, jbyteArray, Byte, (const uint8_t *IN, int32_t N), KVC_COUNT, JNI_ABORT)
KVC_ARRAY(byte, jbyteArray, Byte, (const uint8_t *IN, int64_t N), KVC_COUNT, JNI_ABORT)
KVC_ARRAY(int, jintArray, Int, (int32_t *BUF, int32_t CAP), KVC_COUNT, KVC_COPY_BACK)
KVC_ARRAY(float, jfloatArray, Float, (float *BUF, int32_t CAP), KVC_COUNT, KVC_COPY_BACK)
KVC_ARRAY(float, jfloatArray, Float, (float *BUF, int64_t CAP), KVC_COUNT, KVC_COPY_BACK)
KVC_ARRAY(byte, jbyteArray, Byte, (uint8_t *BUF, int32_t CAP), KVC_COUNT, KVC_COPY_BACK)
KVC_ARRAY(byte, jbyteArray, Byte, (char *BUF, int32_t CAP), KVC_COUNT, KVC_COPY_BACK)
KVC_ARRAY(byte, jbyteArray, Byte, (uint8_t *BUF, int64_t CAP), KVC_COUNT, KVC_COPY_BACK)
KVC_ARRAY(int, jintArray, Int, int32_t *OUT_ROW, , KVC_COPY_BACK)
KVC_ARRAY(int, jintArray, Int, kvc_status *OUT_ROW, , KVC_COPY_BACK)
KVC_ARRAY(int, jintArray, Int, const int32_t *IN_ROW, , JNI_ABORT)
KVC_ARRAY(float, jfloatArray, Float, const float *IN_ROW, , JNI_ABORT)

/* Handles: pointers may be narrower than long. */
%typemap(jni) (kvc_session *const *SESSIONS, int32_t N) "jlongArray"
%typemap(jtype) (kvc_session *const *SESSIONS, int32_t N) "long[]"
%typemap(jstype) (kvc_session *const *SESSIONS, int32_t N) "long[]"
%typemap(javain) (kvc_session *const *SESSIONS, int32_t N) "$javainput"
%typemap(in, numinputs=1) (kvc_session *const *SESSIONS, int32_t N) (kvc_session *temp[256]) {
  $2 = $input ? (int32_t)JCALL1(GetArrayLength, jenv, $input) : 0;
  if ($2 <= 256) { /* more is an error that the library tells */
    for (int32_t i = 0; i < $2; ++i) {
      jlong handle;
      JCALL4(GetLongArrayRegion, jenv, $input, i, 1, &handle);
      temp[i] = (kvc_session *)(intptr_t)handle;
    }
  }
  $1 = temp;
}

/* Memory that stays: a direct buffer, whole. */
%typemap(jni) (const uint8_t *KEPT, int64_t N) "jobject"
%typemap(jtype) (const uint8_t *KEPT, int64_t N) "java.nio.ByteBuffer"
%typemap(jstype) (const uint8_t *KEPT, int64_t N) "java.nio.ByteBuffer"
%typemap(javain) (const uint8_t *KEPT, int64_t N) "$javainput"
%typemap(in, numinputs=1) (const uint8_t *KEPT, int64_t N) {
  $1 = $input ? ($1_ltype)JCALL1(GetDirectBufferAddress, jenv, $input) : NULL;
  $2 = $1 ? (int64_t)JCALL1(GetDirectBufferCapacity, jenv, $input) : 0;
}
