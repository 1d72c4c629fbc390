// Token ids that are a part of an array, or in no array of the collector's at all: read where they are. What each
// method does stands with its namesake that takes an array.
#if NETSTANDARD2_1_OR_GREATER || NETSTANDARD2_1 || NETCOREAPP3_0_OR_GREATER || KVC_NETSTANDARD2_1
using System;
using System.Runtime.InteropServices;
using System.Threading;

namespace Kvc {
public sealed partial class Session {
  /// <summary>As Prefill of an array.</summary>
  public void Prefill(ReadOnlySpan<int> tokens) {
    Error.Check(Spans.kvc_session_prefill(Handle, ref Spans.First(tokens), tokens.Length));
  }

  /// <summary>As Prefill of an array.</summary>
  public void Prefill(ReadOnlyMemory<int> tokens, CancellationToken cancel = default(CancellationToken)) {
    With(cancel, () => Prefill(tokens.Span));
  }

  /// <summary>As Append of an array.</summary>
  public void Append(ReadOnlySpan<int> tokens) {
    Error.Check(Spans.kvc_session_append(Handle, ref Spans.First(tokens), tokens.Length));
  }

  /// <summary>As Append of an array.</summary>
  public void Append(ReadOnlyMemory<int> tokens, CancellationToken cancel = default(CancellationToken)) {
    With(cancel, () => Append(tokens.Span));
  }

  /// <summary>As Enqueue of an array.</summary>
  public void Enqueue(ReadOnlySpan<int> tokens, bool compress = true) {
    Error.Check(Spans.kvc_session_enqueue(Handle, ref Spans.First(tokens), tokens.Length, compress ? 1 : 0));
  }

  /// <summary>As Step with an array.</summary>
  public int[] Step(ReadOnlySpan<int> draft) {
    int[] tokens = new int[Math.Min(draft.Length, 31) + 1];
    Error.Check(Spans.kvc_session_step_draft(Handle, ref Spans.First(draft), draft.Length, tokens, tokens.Length,
                                             out int n));
    Array.Resize(ref tokens, n);
    return tokens;
  }
}

public sealed partial class Model {
  /// <summary>As Detokenize of an array.</summary>
  public string Detokenize(ReadOnlySpan<int> tokens) {
    byte[] text = new byte[1024];
    int n;
    while (Error.Check(Spans.kvc_detokenize(handle, ref Spans.First(tokens), tokens.Length, text, text.Length, out n))
           != Flat.KVC_OK) {
      text = new byte[n];
    }
    return Utf8.Decode(text, n);
  }
}

public static partial class Library {
  /// <summary>As DraftLookup in an array.</summary>
  public static int[] DraftLookup(ReadOnlySpan<int> tokens, int most = 8, int nGram = 3) {
    Load();
    int[] draft = new int[Math.Max(most, 0)];
    Error.Check(Spans.kvc_draft_lookup(ref Spans.First(tokens), tokens.Length, nGram, draft, draft.Length, out int n));
    Array.Resize(ref draft, n);
    return draft;
  }
}

/// The entries of the flat layer once more, with a reference to the first token, which the marshaller pins, where that
/// has an array.
internal static class Spans {
  /// NULL for a span of none.
  internal static ref int First(ReadOnlySpan<int> tokens) { return ref MemoryMarshal.GetReference(tokens); }

  [DllImport("kvc_csharp", EntryPoint = "CSharp_Kvc_kvc_session_prefill")]
  internal static extern IntPtr kvc_session_prefill(SessionHandle session, ref int tokens, int n);

  [DllImport("kvc_csharp", EntryPoint = "CSharp_Kvc_kvc_session_append")]
  internal static extern IntPtr kvc_session_append(SessionHandle session, ref int tokens, int n);

  [DllImport("kvc_csharp", EntryPoint = "CSharp_Kvc_kvc_session_enqueue")]
  internal static extern IntPtr kvc_session_enqueue(SessionHandle session, ref int tokens, int n, int compress);

  [DllImport("kvc_csharp", EntryPoint = "CSharp_Kvc_kvc_session_step_draft")]
  internal static extern IntPtr kvc_session_step_draft(SessionHandle session, ref int draft, int n, [Out] int[] tokens,
                                                       int cap, out int got);

  [DllImport("kvc_csharp", EntryPoint = "CSharp_Kvc_kvc_detokenize")]
  internal static extern IntPtr kvc_detokenize(ModelHandle model, ref int tokens, int n, [Out] byte[] text, int cap,
                                               out int got);

  [DllImport("kvc_csharp", EntryPoint = "CSharp_Kvc_kvc_draft_lookup")]
  internal static extern IntPtr kvc_draft_lookup(ref int tokens, int n, int nGram, [Out] int[] draft, int cap,
                                                 out int got);
}
}
#endif
