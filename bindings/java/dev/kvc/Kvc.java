package dev.kvc;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;

/** The library itself: versions, devices, methods, log. */
public final class Kvc {
  private Kvc() {}

  /** How much the log tells. */
  public enum Level {
    /** What compression left of a prompt. */
    DEBUG(Flat.KVC_LOG_DEBUG),
    /** Models opened, sessions saved, restored or full. */
    INFO(Flat.KVC_LOG_INFO),
    /** What was asked for and is not so; calls that ran out of memory. */
    WARNING(Flat.KVC_LOG_WARNING),
    /** Nothing so far. */
    ERROR(Flat.KVC_LOG_ERROR);

    final int code;

    Level(int code) {
      this.code = code;
    }
  }

  /** A line of the log. */
  public static final class LogLine {
    /** How grave. */
    public final Level level;
    /** For people: the words may change. */
    public final String text;

    LogLine(Level level, String text) {
      this.level = level;
      this.text = text;
    }

    @Override
    public String toString() {
      return level + ": " + text;
    }
  }

  /**
   * Version of the native library.
   *
   * @return such as "0.1.0"
   */
  public static String version() {
    NativeLibrary.load();
    return NativeLibrary.text(Flat.kvc_version());
  }

  /**
   * Newest model file that the library reads.
   *
   * @return its schema version
   */
  public static int schemaVersion() {
    NativeLibrary.load();
    return Flat.kvc_schema_version();
  }

  /**
   * Kinds of devices that the library knows, whether this machine has them or not.
   *
   * @return one JSON object each: name, summary, available, and more where it is
   */
  public static List<String> devices() {
    NativeLibrary.load();
    List<String> devices = new ArrayList<>();
    for (int i = 0; i < Flat.kvc_device_count(); ++i) {
      int index = i;
      devices.add(Utf8.read((json, n) -> Flat.kvc_device_describe(index, json, n)));
    }
    return devices;
  }

  /**
   * Bytes per second that a device reads from its memory. Takes up to a second and 256 MiB, of a GPU's own memory
   * up to 2 GiB.
   *
   * @param index in {@link #devices}
   * @return bytes per second
   */
  public static double measureDevice(int index) {
    NativeLibrary.load();
    double[] rate = new double[1];
    Flat.kvc_device_measure(index, rate);
    return rate[0];
  }

  /**
   * A draft from the text itself: what followed the last tokens where they stood before. Good where an answer repeats
   * its prompt.
   *
   * @param tokens prompt and answer so far
   * @param most of the draft
   * @param nGram last tokens that are looked for, 1 to 64; 3 is usual. Fewer, two at least, where so many are nowhere
   * @return the draft for {@link Session#step(int...)}, perhaps empty
   */
  public static int[] draftLookup(int[] tokens, int most, int nGram) {
    NativeLibrary.load();
    Objects.requireNonNull(tokens, "tokens");
    int[] draft = new int[Math.max(most, 0)];
    int[] n = new int[1];
    Flat.kvc_draft_lookup(tokens, nGram, draft, n);
    return Arrays.copyOf(draft, n[0]);
  }

  /**
   * Compression methods.
   *
   * @return their names, for {@link Policy#of}
   */
  public static List<String> methods() {
    NativeLibrary.load();
    List<String> names = new ArrayList<>();
    for (int i = 0; i < Flat.kvc_method_count(); ++i) {
      byte[] name = Flat.kvc_method_name(i);
      names.add(Utf8.decode(name, name.length));
    }
    return names;
  }

  /**
   * One method.
   *
   * @param index in {@link #methods}
   * @return JSON: name, summary, source, options
   */
  public static String describeMethod(int index) {
    NativeLibrary.load();
    return Utf8.read((json, n) -> Flat.kvc_method_describe(index, json, n));
  }

  /**
   * Keeps lines of the log, at most 256, for {@link #pollLog}. The library has one log in a process: this takes it.
   *
   * @param level lines of it and above
   */
  public static void startLog(Level level) {
    Objects.requireNonNull(level, "level");
    NativeLibrary.load();
    Flat.kvc_log_start(level.code);
  }

  /**
   * Takes the oldest line that was kept.
   *
   * @return the line, or null when there is none
   */
  public static LogLine pollLog() {
    NativeLibrary.load();
    int[] level = new int[1];
    String text = Utf8.read((bytes, n) -> Flat.kvc_log_poll(level, bytes, n));
    for (Level one : Level.values()) {
      if (one.code == level[0]) return new LogLine(one, text);
    }
    return null;
  }

  /** Silent again. Lines that were kept can still be polled. */
  public static void stopLog() {
    NativeLibrary.load();
    Flat.kvc_log_stop();
  }
}
