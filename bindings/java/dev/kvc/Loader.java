package dev.kvc;

import java.util.Objects;

/** Opens models while other threads see how far it is, and stop it. */
public final class Loader implements AutoCloseable {
  private final Ref ref;

  /** A loader, to be closed. */
  public Loader() {
    NativeLibrary.load();
    long[] handle = new long[1];
    Flat.kvc_loader_create(handle);
    ref = new Ref(this, "loader", handle[0], Flat::kvc_loader_close, Flat::kvc_loader_cancel, null);
  }

  /**
   * As {@link Model#open(String, ModelParams)}; one at a time, else {@link Status#BUSY}.
   *
   * @param path of the model file
   * @param params null: all defaults
   * @return the model, to be closed
   * @throws KvcException also {@link Status#CANCELLED}
   */
  public Model open(String path, ModelParams params) {
    Objects.requireNonNull(path, "path");
    return ref.get(this, h -> Model.opened(null, params, (device, raw, handle) ->
        Flat.kvc_loader_open(h, Utf8.name(path, "path"), device, raw, handle)));
  }

  /**
   * As {@link Model#open(int, long, long, ModelParams)}; one at a time, else {@link Status#BUSY}.
   *
   * @param fd descriptor of an open file
   * @param offset where the model begins
   * @param bytes how long it is; 0: to the end of the file
   * @param params null: all defaults
   * @return the model, to be closed
   * @throws KvcException also {@link Status#CANCELLED}
   */
  public Model open(int fd, long offset, long bytes, ModelParams params) {
    return ref.get(this, h -> Model.opened(null, params, (device, raw, handle) ->
        Flat.kvc_loader_open_fd(h, fd, offset, bytes, device, raw, handle)));
  }

  /**
   * How far the open is that runs. From any thread.
   *
   * @return 0 to 1; 1 when none runs
   */
  public double progress() {
    double[] share = new double[1];
    ref.run(this, h -> Flat.kvc_loader_get_progress(h, share));
    return share[0];
  }

  /** The running open, or else the next one, throws {@link Status#CANCELLED}. From any thread. */
  public void cancel() {
    ref.run(this, Flat::kvc_loader_cancel);
  }

  /** Withdraws a cancel that came too late. From any thread. */
  public void clearCancel() {
    ref.runApart(this, Flat::kvc_loader_clear_cancel);
  }

  @Override
  public void close() {
    ref.close();
  }
}
