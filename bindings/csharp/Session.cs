// A conversation with a model. The rules of threads and of Dispose stand in Kvc.cs.
using System;
using System.Collections.Generic;
using System.Text;
using System.Threading;
using System.Threading.Tasks;

namespace Kvc {
/// <summary>One KV cache, one sampler, one stream of text. For one thread at a time, else Status.Busy. From any thread:
/// Cancel, ClearCancel, Progress and Dispose. A CancellationToken cancels the call that runs, which then throws
/// OperationCanceledException and leaves the session as it was.</summary>
public sealed partial class Session : IDisposable {
  /// <summary>Of Step: the answer is complete. Of a Batch: no token.</summary>
  public const int NoToken = Flat.KVC_TOKEN_NONE;

  private readonly CancelledHandle<SessionHandle> own;

  internal Session(SessionHandle made) {
    own = new CancelledHandle<SessionHandle>(made, "Session", h => Flat.kvc_session_cancel(h));
  }

  internal SessionHandle Handle { get { return own.Handle; } }

  /// <summary>Reads a prompt, or more of one (1 token or more), and compresses when the policy asks. A failure leaves
  /// the session as it was.</summary>
  public void Prefill(int[] tokens, CancellationToken cancel = default(CancellationToken)) {
    if (tokens == null) throw new ArgumentNullException("tokens");
    With(cancel, () => Flat.kvc_session_prefill(Handle, tokens, tokens.Length));
  }

  /// <summary>As Prefill, but keeps everything; Compress then applies the policy.</summary>
  public void Append(int[] tokens, CancellationToken cancel = default(CancellationToken)) {
    if (tokens == null) throw new ArgumentNullException("tokens");
    With(cancel, () => Flat.kvc_session_append(Handle, tokens, tokens.Length));
  }

  /// <summary>Applies the policy to what was appended.</summary>
  public void Compress() { Flat.kvc_session_compress(Handle); }

  /// <summary>Queues a prompt, which steps of a Batch read on, as Prefill (compress) or as Append. Any other call that
  /// needs it reads the rest first.</summary>
  public void Enqueue(int[] tokens, bool compress = true) {
    if (tokens == null) throw new ArgumentNullException("tokens");
    Flat.kvc_session_enqueue(Handle, tokens, tokens.Length, compress ? 1 : 0);
  }

  /// <summary>One message of a conversation, between the marks that the model file has for its role. The text never
  /// becomes a special token. Status.Unsupported where the file has no marks and none were set.</summary>
  public void Say(Role role, string text, SayFlags flags = SayFlags.None,
                  CancellationToken cancel = default(CancellationToken)) {
    byte[] bytes = Utf8.Encode(text, "text");
    With(cancel, () => Flat.kvc_session_say(Handle, (int)role, bytes, bytes.Length, (int)flags));
  }

  /// <summary>What the user says, and then the answer: see Generate. The message is said at once.</summary>
  public IEnumerable<string> Ask(string text, int maxTokens, CancellationToken cancel = default(CancellationToken)) {
    Say(Role.User, text, SayFlags.Answer, cancel);
    return Generate(maxTokens, cancel);
  }

  /// <summary>Marks for a role other than the file's, before and behind a message; special tokens in them count as
  /// such. Both null: the file's again.</summary>
  public void SetTurnMarks(Role role, string prefix, string suffix) {
    Flat.kvc_session_set_turn_marks(Handle, (int)role, Utf8.Name(prefix, "prefix"), Utf8.Name(suffix, "suffix"));
  }

  /// <summary>Compresses harder, to so many slots of a KV head on average, and keeps that budget. Returns the bytes
  /// that were freed.</summary>
  public long Trim(int budget) {
    Flat.kvc_session_trim(Handle, budget, out long freed);
    return freed;
  }

  /// <summary>Generates one token: its id, or NoToken when the answer is complete. Status.ContextFull when MaxTokens
  /// are held and OnFull makes no room.</summary>
  public int Step() {
    Flat.kvc_session_step(Handle, out int token);
    return token;
  }

  /// <summary>As Step called several times: so many tokens as the draft foresaw, and one more, from one pass over the
  /// weights; none when the answer is complete. They are those that Step gives whatever the draft says, of which 31 are
  /// looked at. One comes where a step does more than append: methods that evict or watch at steps, quantised
  /// caches.</summary>
  public int[] Step(int[] draft) {
    if (draft == null) throw new ArgumentNullException("draft");
    int[] tokens = new int[Math.Min(draft.Length, 31) + 1];
    Flat.kvc_session_step_draft(Handle, draft, draft.Length, tokens, tokens.Length, out int n);
    Array.Resize(ref tokens, n);
    return tokens;
  }

  /// <summary>The answer goes on with a token of the caller's, as if Step had given it.</summary>
  public void Accept(int token) { Flat.kvc_session_accept(Handle, token); }

  /// <summary>Text since the last call that is complete, perhaps ""; the bytes of a split character wait
  /// inside.</summary>
  public string ReadText() {
    byte[] bytes = new byte[256];
    StringBuilder all = null;
    while (true) {
      Flat.kvc_session_read_text(Handle, bytes, bytes.Length, out int n);
      string part = Utf8.Decode(bytes, n);
      // A character that did not fit any more has at most four bytes.
      if (n <= bytes.Length - 4) return all == null ? part : all.Append(part).ToString();
      all = (all ?? new StringBuilder()).Append(part);
    }
  }

  /// <summary>The answer as it comes, in pieces of complete characters, each computed when it is asked for. It ends at
  /// a stop token or at maxTokens. Leave it where you like: the session stays behind the last piece taken.</summary>
  public IEnumerable<string> Generate(int maxTokens, CancellationToken cancel = default(CancellationToken)) {
    int left = maxTokens;
    for (string piece; (piece = Piece(ref left, cancel)) != null;) yield return piece;
  }

  /// The next piece, or null at the end.
  private string Piece(ref int left, CancellationToken cancel) {
    while (left > 0) {
      int token = NoToken;
      With(cancel, () => Flat.kvc_session_step(Handle, out token));
      left = token == NoToken ? 0 : left - 1;
      string text = ReadText();
      if (text.Length > 0) return text;
    }
    return null;
  }

#if NETSTANDARD2_1_OR_GREATER || NETSTANDARD2_1 || NETCOREAPP3_0_OR_GREATER || KVC_NETSTANDARD2_1
  /// <summary>As Generate, each step on a thread of the pool: await foreach over it. The token of WithCancellation
  /// counts as well.</summary>
  public IAsyncEnumerable<string> GenerateAsync(int maxTokens, CancellationToken cancel = default(CancellationToken)) {
    return new AsyncPieces { session = this, left = maxTokens, cancel = cancel };
  }

  private sealed class AsyncPieces : IAsyncEnumerable<string>, IAsyncEnumerator<string> {
    internal Session session;
    internal int left;
    internal CancellationToken cancel;
    private CancellationTokenSource both;

    public string Current { get; private set; }

    public IAsyncEnumerator<string> GetAsyncEnumerator(CancellationToken token) {
      AsyncPieces made = new AsyncPieces { session = session, left = left, cancel = cancel };
      if (!cancel.CanBeCanceled) {
        made.cancel = token; // the exception has the caller's own
      } else if (token.CanBeCanceled) {
        made.both = CancellationTokenSource.CreateLinkedTokenSource(cancel, token);
        made.cancel = made.both.Token;
      }
      return made;
    }

    public ValueTask<bool> MoveNextAsync() {
      return new ValueTask<bool>(Task.Run(() => (Current = session.Piece(ref left, cancel)) != null));
    }

    public ValueTask DisposeAsync() {
      both?.Dispose();
      return default(ValueTask);
    }
  }
#endif

  /// <summary>How the following steps choose. null: greedy.</summary>
  public void SetSampling(Sampling sampling) {
    using (kvc_sampling raw = (sampling ?? new Sampling()).Raw()) Flat.kvc_session_set_sampling(Handle, raw);
  }

  /// <summary>Added to the logits of these tokens before a step chooses, instead of what was set before: as many biases
  /// as tokens, finite or float.NegativeInfinity (never). None: no bias.</summary>
  public void SetLogitBias(int[] tokens, float[] biases) {
    if (tokens == null || biases == null) throw new ArgumentNullException(tokens == null ? "tokens" : "biases");
    if (tokens.Length != biases.Length) {
      throw new KvcException(Status.Invalid, tokens.Length + " tokens and " + biases.Length + " biases");
    }
    Flat.kvc_session_set_logit_bias(Handle, tokens, biases, tokens.Length);
  }

  /// <summary>The only tokens that the following steps may choose, until the next mask: bit t % 32 of word t / 32 is
  /// token t, (vocabulary + 31) / 32 words; null or none: all.</summary>
  public void SetTokenMask(int[] mask) {
    Flat.kvc_session_set_token_mask(Handle, mask, mask == null ? 0 : mask.Length);
  }

  /// <summary>Logits [vocabulary] after the newest token, from which the next step chooses.</summary>
  public float[] Logits() {
    return Filled.Array(0, (float[] logits, out int n) =>
        Flat.kvc_session_get_logits(Handle, logits, logits.Length, out n));
  }

  /// <summary>The same into an array of [vocabulary] or more. Returns how many were written.</summary>
  public int Logits(float[] into) {
    if (into == null) throw new ArgumentNullException("into");
    int status = Flat.kvc_session_get_logits(Handle, into, into.Length, out int n);
    if (status != Flat.KVC_OK || n > into.Length) {  // without room the library only counts
      throw new KvcException(Status.BufferTooSmall, "into: " + n + " are needed");
    }
    return n;
  }

  /// <summary>What the session has done and holds.</summary>
  public SessionStats Stats() {
    using (kvc_session_stats raw = new kvc_session_stats()) {
      Flat.kvc_session_get_stats(Handle, raw);
      return new SessionStats(raw);
    }
  }

  /// <summary>Share that has been read by the Prefill, Append or Say that runs, 0 to 1; 1 when none runs. From any
  /// thread.</summary>
  public double Progress {
    get {
      Flat.kvc_session_get_progress(Handle, out double share);
      return share;
    }
  }

  /// <summary>Positions that are still cached for one head, ascending. With reducer=rest the first may be -n: an entry
  /// that stands for n dropped tokens. A queued prompt is not read for it.</summary>
  public int[] Kept(int layer, int kvHead) {
    return Filled.Array(0, (int[] positions, out int n) =>
        Flat.kvc_session_get_kept(Handle, layer, kvHead, positions, positions.Length, out n));
  }

  /// <summary>Empty again. Policy with Trim's budget, sampling, seed, bias, mask and marks stay; mends
  /// Status.Device.</summary>
  public void Reset() { Flat.kvc_session_reset(Handle); }

  /// <summary>The call that runs, or else the next one that computes or queues, throws Status.Cancelled. From any
  /// thread.</summary>
  public void Cancel() { Flat.kvc_session_cancel(Handle); }

  /// <summary>Withdraws a Cancel that came too late. From any thread.</summary>
  public void ClearCancel() { own.WhileOpen(h => Flat.kvc_session_clear_cancel(h)); }

  /// <summary>Another session with the same cache, which is shared until one of them writes.</summary>
  public Session Fork() {
    Flat.kvc_session_fork(Handle, out SessionHandle made);
    return new Session(made);
  }

  /// <summary>Takes the newest tokens back. Status.Unsupported where an older one was evicted since.</summary>
  public void Rewind(int tokens) { Flat.kvc_session_rewind(Handle, tokens); }

  /// <summary>Writes the session to a file, whole or not at all. Model.Restore reads it.</summary>
  public void Save(string path) { Flat.kvc_session_save(Handle, Utf8.Required(path, "path")); }

  /// <summary>The session as bytes, which Model.Restore reads.</summary>
  public byte[] Save() {
    return Filled.Array(0, (byte[] data, out int n) => {
      int status = Flat.kvc_session_save_memory(Handle, data, data.Length, out long bytes);
      if (bytes > int.MaxValue - 64) {
        throw new KvcException(Status.Unsupported, bytes + " bytes are too many for an array; save to a file");
      }
      n = (int)bytes;
      return status;
    });
  }

  /// <summary>Nothing that a thread at work would hear of as Status.Busy.</summary>
  public override string ToString() { return own.IsDisposed ? "Session, disposed" : "Session"; }

  /// <summary>Cancels what runs, and gives the session back.</summary>
  public void Dispose() { own.Dispose(); }

  /// Where another thread may dispose at the same time.
  private static void Quietly(Action action) {
    try {
      action();
    } catch (ObjectDisposedException) {
    }
  }

  private void With(CancellationToken cancel, Action call) {
    if (!cancel.CanBeCanceled) {
      call();
      return;
    }
    cancel.ThrowIfCancellationRequested();
    try {
      using (cancel.Register(() => Quietly(Cancel))) call();
    } catch (KvcException e) when (e.Status == Status.Cancelled && cancel.IsCancellationRequested) {
      throw new OperationCanceledException(e.Message, e, cancel);
    } finally {
      // It may have come behind the last moment, of a call that failed too, and would stop the next one.
      if (cancel.IsCancellationRequested) Quietly(ClearCancel);
    }
  }
}
}
