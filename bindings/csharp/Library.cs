// The library itself: versions, devices, methods, log; and what the other classes stand on.
using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using System.Text;

namespace Kvc {
/// <summary>The library itself: versions, devices, methods, log.</summary>
public static partial class Library {
  private static volatile bool loaded;

  /// <summary>Version of the native library, such as "0.1.0".</summary>
  public static string Version { get { Load(); return Text(Flat.kvc_version()); } }

  /// <summary>Newest schema version of model files that the library reads.</summary>
  public static int SchemaVersion { get { Load(); return Flat.kvc_schema_version(); } }

  /// <summary>Kinds of devices that the library knows, whether this machine has them or not: a JSON object each, with
  /// name, summary, available, and more where it is.</summary>
  public static IReadOnlyList<string> Devices() {
    Load();
    string[] devices = new string[Flat.kvc_device_count()];
    for (int i = 0; i < devices.Length; ++i) {
      int index = i;
      devices[i] = Utf8.Read((byte[] json, out int n) => Flat.kvc_device_describe(index, json, json.Length, out n));
    }
    return devices;
  }

  /// <summary>Bytes per second that device index of Devices reads from its memory. Takes up to a second and
  /// 256 MiB, of a GPU's own memory up to 2 GiB.</summary>
  public static double MeasureDevice(int index) {
    Load();
    Flat.kvc_device_measure(index, out double rate);
    return rate;
  }

  /// <summary>A draft for Session.Step from the text itself: what followed the last nGram tokens (1 to 64; two at least
  /// where so many stood nowhere before) where they stood before, perhaps nothing. Good where an answer repeats its
  /// prompt.</summary>
  public static int[] DraftLookup(int[] tokens, int most = 8, int nGram = 3) {
    Load();
    if (tokens == null) throw new ArgumentNullException("tokens");
    int[] draft = new int[Math.Max(most, 0)];
    Flat.kvc_draft_lookup(tokens, tokens.Length, nGram, draft, draft.Length, out int n);
    Array.Resize(ref draft, n);
    return draft;
  }

  /// <summary>Names of the compression methods, for a Policy.</summary>
  public static IReadOnlyList<string> Methods() {
    Load();
    string[] names = new string[Flat.kvc_method_count()];
    for (int i = 0; i < names.Length; ++i) names[i] = Utf8.Static(Flat.kvc_method_name(i));
    return names;
  }

  /// <summary>Method index of Methods as JSON: name, summary, source, options.</summary>
  public static string DescribeMethod(int index) {
    Load();
    return Utf8.Read((byte[] json, out int n) => Flat.kvc_method_describe(index, json, json.Length, out n));
  }

  /// <summary>Keeps lines of the log, of this level and above and at most 256, for PollLog. The library has one log in
  /// a process: this takes it.</summary>
  public static void StartLog(LogLevel level) {
    Load();
    Flat.kvc_log_start((int)level);
  }

  /// <summary>Takes the oldest line that was kept; null when there is none.</summary>
  public static LogLine PollLog() {
    Load();
    int level = -1;
    string text = Utf8.Read((byte[] bytes, out int n) => Flat.kvc_log_poll(out level, bytes, bytes.Length, out n));
    return level < 0 ? null : new LogLine((LogLevel)level, text);
  }

  /// <summary>Silent again. Lines that were kept can still be polled.</summary>
  public static void StopLog() {
    Load();
    Flat.kvc_log_stop();
  }

  internal static string NameOf(Status status) { return Utf8.Static(Flat.kvc_status_name((int)status)); }

  /// Called before the first native call. Fails the same way each time.
  internal static void Load() {
    if (loaded) return;
    int version;
    try {
      version = Flat.kvc_version();
    } catch (DllNotFoundException e) {
      throw new DllNotFoundException("the native library of libkvc, libkvc_csharp.so (kvc_csharp.dll, "
          + "libkvc_csharp.dylib), was not found or cannot be loaded on this machine (" + Platform()
          + "). Looked for beside " + AppDomain.CurrentDomain.BaseDirectory + ", in LD_LIBRARY_PATH ("
          + Environment.GetEnvironmentVariable("LD_LIBRARY_PATH") + ") and where the system has its libraries; .NET "
          + "also looks into runtimes/<system>/native of the package. " + e.Message, e);
    } catch (EntryPointNotFoundException e) {
      throw new DllNotFoundException("the library kvc_csharp that was found is not libkvc's: " + e.Message, e);
    }
    if (!Fits(version, Flat.KVC_VERSION)) {
      throw new DllNotFoundException("libkvc_csharp is libkvc " + Text(version) + ", and this assembly was made for "
          + Text(Flat.KVC_VERSION) + ": use an assembly and a library of the same version");
    }
    loaded = true;
  }

  /// A later minor version has all of an earlier one; before 1.0 they do not promise that.
  internal static bool Fits(int version, int wanted) {
    if (wanted < 10000) return version / 100 == wanted / 100;
    return version / 10000 == wanted / 10000 && version >= wanted;
  }

  private static string Text(int version) {
    return version / 10000 + "." + version / 100 % 100 + "." + version % 100;
  }

  private static string Platform() { return Environment.OSVersion.Platform + ", " + IntPtr.Size * 8 + " bits"; }
}

/// Text crosses the border as bytes of UTF-8: what the marshaller makes of a string depends on the runtime.
internal static class Utf8 {
  private static readonly UTF8Encoding Strict = new UTF8Encoding(false, true);

  /// The bytes of a text; half a surrogate pair is an error, as there is no such text.
  internal static byte[] Encode(string text, string what) {
    if (text == null) throw new ArgumentNullException(what);
    try {
      return Strict.GetBytes(text);
    } catch (EncoderFallbackException) {
      throw new KvcException(Status.Invalid, what + ": half a surrogate pair is no text");
    }
  }

  /// The bytes of a name, path or spec with a NUL behind them; null stays null.
  internal static byte[] Name(string text, string what) {
    if (text == null) return null;
    if (text.IndexOf('\0') >= 0) throw new KvcException(Status.Invalid, what + " has a NUL in it");
    return Encode(text + "\0", what);
  }

  internal static byte[] Required(string text, string what) {
    if (text == null) throw new ArgumentNullException(what);
    return Name(text, what);
  }

  internal static string Decode(byte[] bytes, int n) { return Encoding.UTF8.GetString(bytes, 0, n); }

  /// A string of C that is never freed.
  internal static string Static(IntPtr text) {
    if (text == IntPtr.Zero) return null;
    int n = 0;
    while (Marshal.ReadByte(text, n) != 0) ++n;
    byte[] bytes = new byte[n];
    Marshal.Copy(text, bytes, 0, n);
    return Decode(bytes, n);
  }

  internal static string Read(Filled.Call<byte> call) {
    byte[] bytes = Filled.Array(1024, call);
    return Decode(bytes, bytes.Length);
  }
}

/// Arrays that a call fills, and whose length only the library knows.
internal static class Filled {
  /// A call that fills an array and says how many there are; it returns not 0 when there are more.
  internal delegate int Call<T>(T[] into, out int n);

  /// Of such a call into guess elements, and again while they are too few, as there may be more the next time; into
  /// none of them the library only counts.
  internal static T[] Array<T>(int guess, Call<T> call) {
    T[] into = new T[guess];
    int n;
    while (call(into, out n) != Flat.KVC_OK || n > into.Length) into = new T[n];
    System.Array.Resize(ref into, n);
    return into;
  }
}

/// What a native call that failed returns: bindings/error_record.h.
internal static class Error {
  internal static int Check(IntPtr record) {
    if (record == IntPtr.Zero) return Flat.KVC_OK;
    int status = Marshal.ReadInt32(record, 0);
    byte[] text = new byte[Marshal.ReadInt32(record, 4)];
    Marshal.Copy(new IntPtr(record.ToInt64() + 8), text, 0, text.Length);
    Flat.kvc_error_record_free(record);
    if (status == Flat.KVC_E_BUFFER_TOO_SMALL) return status;
    throw new KvcException((Status)status, Utf8.Decode(text, text.Length));
  }
}

/// Handles of C. The runtime counts who is using one: it is given back behind the last call on it.
internal abstract class Handle : SafeHandle {
  protected Handle() : base(IntPtr.Zero, true) {}
  public override bool IsInvalid { get { return handle == IntPtr.Zero; } }
}

internal sealed class ModelHandle : Handle {
  protected override bool ReleaseHandle() { Flat.kvc_model_close(handle); return true; }
}

internal sealed class PolicyHandle : Handle {
  /// NULL: keep everything.
  internal static readonly PolicyHandle None = new PolicyHandle();
  protected override bool ReleaseHandle() { Flat.kvc_policy_close(handle); return true; }
}

internal sealed class SessionHandle : Handle {
  protected override bool ReleaseHandle() { Flat.kvc_session_close(handle); return true; }
}

internal sealed class LoaderHandle : Handle {
  protected override bool ReleaseHandle() { Flat.kvc_loader_close(handle); return true; }
}

/// A handle in use until Dispose. Of a call with two, the runtime takes the first and then the second, and Mono does
/// not give the first back where the second is disposed: the second is taken before the call.
internal sealed class Held<T> : IDisposable where T : SafeHandle {
  internal T Handle { get; }

  internal Held(T handle) {
    bool taken = false;
    handle.DangerousAddRef(ref taken);
    Handle = handle;
  }

  public void Dispose() { Handle.DangerousRelease(); }
}

/// A handle whose calls take long. It counts as disposed from Dispose on, not when the last call has left it, and
/// nobody takes back the cancel that ends that call.
internal sealed class CancelledHandle<T> : IDisposable where T : SafeHandle {
  private readonly T handle;
  private readonly string what;
  private readonly Action<T> cancel;
  private readonly object gate = new object();
  private volatile bool disposed;

  internal CancelledHandle(T handle, string what, Action<T> cancel) {
    this.handle = handle;
    this.what = what;
    this.cancel = cancel;
  }

  internal bool IsDisposed { get { return disposed; } }

  internal T Handle {
    get {
      if (disposed) throw new ObjectDisposedException(what);
      return handle;
    }
  }

  /// A short call, to which Dispose comes before or behind.
  internal void WhileOpen(Action<T> call) {
    lock (gate) call(Handle);
  }

  public void Dispose() {
    lock (gate) {
      if (disposed) return;
      disposed = true;
      cancel(handle);
    }
    handle.Dispose();
  }
}
}
