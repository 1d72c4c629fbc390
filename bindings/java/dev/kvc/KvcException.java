package dev.kvc;

/** A call of libkvc that failed: why, as a {@link Status}, and in words. */
public final class KvcException extends RuntimeException {
  private static final long serialVersionUID = 1;

  /** Why, for programs. */
  private final Status status;

  /** Called from C, in the call that failed: the text belongs to its thread. */
  KvcException(int code, byte[] text) {
    this(Status.of(code), Utf8.decode(text, text.length));
  }

  KvcException(Status status, String text) {
    super(text + " (" + status.name() + ")");
    this.status = status;
  }

  /**
   * Why, for programs.
   *
   * @return the status, never {@link Status#OK}
   */
  public Status status() {
    return status;
  }
}
