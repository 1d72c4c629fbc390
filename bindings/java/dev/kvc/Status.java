package dev.kvc;

/** What a call came to: the KVC_E_* of kvc.h. */
public enum Status {
  /** Fine. */
  OK(Flat.KVC_OK),
  /** An argument that cannot be. */
  INVALID(Flat.KVC_E_INVALID),
  /** No memory, or past {@link ModelParams#memoryLimit}. */
  MEMORY(Flat.KVC_E_MEMORY),
  /** A file cannot be read or written. */
  IO(Flat.KVC_E_IO),
  /** A file is damaged, foreign or newer than the library. */
  BAD_MODEL(Flat.KVC_E_BAD_MODEL),
  /** This library, device, method or model cannot do that. */
  UNSUPPORTED(Flat.KVC_E_UNSUPPORTED),
  /** There is no such thing. */
  NOT_FOUND(Flat.KVC_E_NOT_FOUND),
  /** An array of the caller's is too small. */
  BUFFER_TOO_SMALL(Flat.KVC_E_BUFFER_TOO_SMALL),
  /** The session holds as many tokens as it may. */
  CONTEXT_FULL(Flat.KVC_E_CONTEXT_FULL),
  /** {@link Session#cancel} or {@link Loader#cancel} was called. */
  CANCELLED(Flat.KVC_E_CANCELLED),
  /** The device failed. */
  DEVICE(Flat.KVC_E_DEVICE),
  /** Another thread is at work on the session, or on the loader. */
  BUSY(Flat.KVC_E_BUSY),
  /** A defect of the library, or a status that this class does not know. */
  INTERNAL(Flat.KVC_E_INTERNAL);

  final int code;

  Status(int code) {
    this.code = code;
  }

  /** The status of a number of C. */
  static Status of(int code) {
    for (Status status : values()) {
      if (status.code == code) return status;
    }
    return INTERNAL;
  }

  /**
   * The name in C.
   *
   * @return such as "IO", for KVC_E_IO
   */
  public String cName() {
    NativeLibrary.load();
    byte[] name = Flat.kvc_status_name(code);
    return Utf8.decode(name, name.length);
  }
}
