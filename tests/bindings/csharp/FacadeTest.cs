// What every method does, on the real model. Misuse is in MisuseTest.cs.
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Runtime.InteropServices;
using System.Threading;
using Kvc;

static class FacadeTest {
  private static Model model;
  private static Policy policy;

  internal static void Run() {
    model = Model.Open(Checks.Recall, new ModelParams { Device = "cpu", Threads = 2, MemoryLimit = 1L << 30 });
    policy = new Policy("cokv:budget=64,window=8");
    Checks.Test("library", LibraryItself);
    Checks.Test("model", ModelItself);
    Checks.Test("where a text begins", Begins);
    Checks.Test("ways to open", WaysToOpen);
    Checks.Test("loader", LoaderItself);
    Checks.Test("policies", Policies);
    Checks.Test("plan", Plans);
    Checks.Test("a character that is cut off", CutOff);
    Checks.Test("streams", Streams);
    Checks.Test("asynchronous streams", AsyncStreams);
    Checks.Test("prompts", Prompts);
    Checks.Test("spans", Spans);
    Checks.Test("samplers", Samplers);
    Checks.Test("conversation", Conversation);
    Checks.Test("branches", Branches);
    Checks.Test("batch", Batches);
    Checks.Test("texts of a batch", TextsOfABatch);
    Checks.Test("log", Log);
    policy.Dispose();
    model.Dispose();
  }

  private static void LibraryItself() {
    Checks.Equal(3, Library.Version.Split('.').Length);
    Checks.Equal(Library.Version, typeof(Library).Assembly.GetName().Version.ToString(3));
    Checks.Check(Library.SchemaVersion > 0, "schema version");
    int cokv = Library.Methods().ToList().IndexOf("cokv");
    Checks.Check(Library.DescribeMethod(cokv).Contains("\"budget\""), "cokv has a budget");
    Checks.Check(Library.Devices()[0].Contains("\"cpu\""), "devices");
    Checks.Check(Library.MeasureDevice(0) > 1e6, "bytes per second");
  }

  private static void ModelItself() {
    ModelInfo i = model.Info();
    Checks.Equal("6 8 4 64 2048 1024",
        string.Join(" ", i.Layers, i.Heads, i.KvHeads, i.HeadDim, i.VocabSize, i.MaxTokens));
    Checks.Check(i.WeightBytes > 10000000 && i.Parameters > 5000000, "sizes");
    Checks.Check(model.Describe().Contains("\"tokenizer\""), "describe");
    Checks.Check(i.HeadScores > 0 && model.HeadScores(0).Length >= i.Layers * i.KvHeads, "scores");
    const string text = "Zo\u00eb \ud83d\ude00\0 \u4e2d";
    int[] tokens = model.Tokenize(text);
    Checks.Equal(text, model.Detokenize(tokens));
    Checks.Equal(tokens.Length + 1, model.Tokenize(text, TokenizeFlags.AddBos).Length);
    Checks.Equal(0, model.Tokenize("").Length);
    Checks.Equal("", model.Detokenize());
    int part = model.Tokenize("\ud83d\udc19")[0];  // of a character
    Checks.Equal("F0", BitConverter.ToString(model.DetokenizeBytes(part)));
    Checks.Equal(text, System.Text.Encoding.UTF8.GetString(model.DetokenizeBytes(tokens)));
    string longText = string.Concat(Enumerable.Repeat("word ", 5000));
    Checks.Equal(longText, model.Detokenize(model.Tokenize(longText)));
  }

  // One model was trained with BOS at the beginning, the other without; both have it.
  private static void Begins() {
    Func<int[], string> line = tokens => string.Join(" ", tokens);
    Checks.Equal(line(model.Tokenize(Checks.Story, TokenizeFlags.AddBos)), line(model.Prompt(Checks.Story)));
    Checks.Equal(1, model.Prompt("").Length);
    using (Model other = Model.Open(Checks.NoBos)) {
      int[] bare = other.Tokenize(Checks.Story);
      Checks.Equal(bare.Length + 1, other.Tokenize(Checks.Story, TokenizeFlags.AddBos).Length);
      for (int i = 0; i < 2; ++i) Checks.Equal(line(bare), line(other.Prompt(Checks.Story)));
    }
  }

  private static string AnswerOf(Model other) {
    using (Session session = Checks.StoryOf(other)) return Checks.Text(session, 8);
  }

  private static void WaysToOpen() {
    string wanted = AnswerOf(model);
    string folder = Path.Combine(Path.GetTempPath(), "kvc \ud83d\ude00 " + Guid.NewGuid());
    string copy = Path.Combine(folder, "Zo\u00eb \u4e2d.kvc");
    Directory.CreateDirectory(folder);
    File.Copy(Checks.Recall, copy);
    using (Model other = Model.Open(copy)) Checks.Equal(wanted, AnswerOf(other));
    using (FileStream file = File.OpenRead(copy))
    using (Model other = Model.Open(file.SafeFileHandle.DangerousGetHandle().ToInt32(), 0, file.Length)) {
      Checks.Equal(wanted, AnswerOf(other));
    }
    byte[] bytes = File.ReadAllBytes(copy);
    IntPtr memory = Marshal.AllocHGlobal(bytes.Length + 64);
    IntPtr aligned = new IntPtr((memory.ToInt64() + 63) / 64 * 64);
    Marshal.Copy(bytes, 0, aligned, bytes.Length);
    using (Model other = Model.Open(aligned, bytes.Length)) Checks.Equal(wanted, AnswerOf(other));
    Marshal.FreeHGlobal(memory);
    Directory.Delete(folder, true);
  }

  private static void LoaderItself() {
    using (Loader loader = new Loader()) {
      Checks.Equal(1.0, loader.Progress);
      loader.Cancel();
      Checks.Failing(Status.Cancelled, () => loader.Open(Checks.Recall));
      loader.Cancel();
      loader.ClearCancel();
      using (Model other = loader.Open(Checks.Recall, new ModelParams { Threads = 1 })) {
        Checks.Equal(2048, other.Info().VocabSize);
      }
      Checks.Failing(Status.Invalid, () => loader.Open(-1, 0, 0));
    }
  }

  private static void Policies() {
    string canonical = policy.Describe();
    Checks.Check(canonical.StartsWith("cokv:budget=64,"), canonical);
    using (Policy again = new Policy(canonical))
    using (Policy table = new Policy("table")) {
      Checks.Equal(canonical, again.Describe());
      again.SetHeadScores(Enumerable.Repeat(1f, 24).ToArray());
      table.SetTable(Enumerable.Repeat(32, 24).ToArray());
      using (Session session = model.NewSession(table)) {
        session.Prefill(Checks.LongPrompt(model, 200));
        Checks.Equal(32, session.Kept(5, 3).Length);
      }
    }
    Checks.Failing(Status.NotFound, () => new Policy("nothing"));
    Checks.Check(Checks.Failing(Status.Invalid, () => new Policy("cokv:budgte=3")).Message.Contains("budget"), "near");
  }

  private static void Plans() {
    Plan plan = model.Plan(policy, new SessionParams { MaxTokens = 512 }, 400);
    Checks.Equal("400 24", plan.Prompt + " " + plan.Slots.Length);
    Checks.Check(plan.CacheBytesEnd < plan.CacheBytesFull && plan.TotalBytesPeak > plan.WeightBytes, "bytes");
    Checks.Equal(10, model.Plan(null, null, 10).Slots[0]);
    Checks.Equal("Plan for 400 tokens: " + plan.TotalBytesPeak + " bytes at most, cache of " + plan.CacheBytesPrompt
        + " bytes after the prompt, " + plan.CacheBytesEnd + " at the end instead of " + plan.CacheBytesFull,
        "" + plan);
    using (Model alone = Model.Open(Checks.Recall,
        new ModelParams { Device = "cpu", Threads = 2, MemoryLimit = 4 << 20, PlanOnly = true })) {
      Plan same = alone.Plan(policy, new SessionParams { MaxTokens = 512 }, 400);
      Checks.Check(same.Slots.SequenceEqual(plan.Slots), "slots without weights");
      Checks.Equal(plan.WorkspaceBytes + " " + plan.CacheBytesPeak, same.WorkspaceBytes + " " + same.CacheBytesPeak);
      // The tokenizer's patterns are machine code, which is longer where it lies far from what it calls.
      Checks.Check(Math.Abs(plan.TotalBytesPeak - same.TotalBytesPeak) < 1024, plan + " and " + same);
      Checks.Failing(Status.Unsupported, () => alone.NewSession());
    }
    Checks.Equal("Model: 6 layers, 2048 tokens, " + model.Info().WeightBytes + " bytes of weights", "" + model);
    Session session = Checks.StoryOf(model);
    string stats = session.Stats().ToString();
    Checks.Check(stats.StartsWith("SessionStats: " + session.Stats().Prompt + " tokens fed, 0 generated, "), stats);
    Checks.Equal("Session", "" + session);
    session.Dispose();
    Checks.Equal("Session, disposed", "" + session);
  }

  // Of an answer that ends inside a character a sign is left, as no more of it can come; a prompt drops it.
  private static void CutOff() {
    int part = model.Tokenize("🐙")[0]; // its first byte
    int end = model.Info().EosToken;
    using (Session session = Checks.StoryOf(model, policy)) {
      Only(session, part);
      Checks.Equal("", Checks.Text(session, 1));
      Only(session, end);
      Checks.Equal("\ufffd", Checks.Text(session, 5));
      session.Accept(part);
      session.Prefill(new[] { part });
      Checks.Equal("", Checks.Text(session, 5));
    }
  }

  private static void Only(Session session, int token) {
    int[] mask = new int[2048 / 32];
    mask[token / 32] = 1 << token % 32;
    session.SetTokenMask(mask);
  }

  private static void Streams() {
    string wanted = "";
    using (Session session = Checks.StoryOf(model, policy)) {
      for (int i = 0; i < 12 && session.Step() != Session.NoToken; ++i) wanted += session.ReadText();
      Checks.Check(wanted.Length > 3, "text");
    }
    using (Session session = Checks.StoryOf(model, policy)) Checks.Equal(wanted, Checks.Text(session, 12));
    using (Session session = Checks.StoryOf(model, policy)) {
      string first = session.Generate(12).First();
      Checks.Equal(1, session.Stats().Answer);
      Checks.Equal(wanted, first + Checks.Text(session, 11));
      Checks.Equal(0, session.Generate(0).Count());
    }
    CancellationTokenSource source = new CancellationTokenSource();
    using (Session session = Checks.StoryOf(model, policy)) {
      int pieces = 0;
      Checks.Throwing<OperationCanceledException>(() => {
        foreach (string piece in session.Generate(100, source.Token)) {
          if (++pieces == 3) source.Cancel();
        }
      });
      Checks.Equal(3, pieces);
      Checks.Check(session.Step() >= 0, "the cancel is gone");
    }
  }

  // The compiler of the floor has no await foreach: by hand, as it would.
  private static void AsyncStreams() {
    using (Session session = Checks.StoryOf(model, policy))
    using (Session same = session.Fork()) {
      string got = "";
      IAsyncEnumerator<string> pieces = session.GenerateAsync(8).GetAsyncEnumerator(default(CancellationToken));
      while (pieces.MoveNextAsync().AsTask().Result) got += pieces.Current;
      pieces.DisposeAsync().AsTask().Wait();
      Checks.Equal(Checks.Text(same, 8), got);
      CancellationTokenSource source = new CancellationTokenSource();
      pieces = session.GenerateAsync(8).GetAsyncEnumerator(source.Token);
      source.Cancel();
      AggregateException e = Checks.Throwing<AggregateException>(() => pieces.MoveNextAsync().AsTask().Wait());
      Checks.Check(e.InnerException is OperationCanceledException, "" + e);
      Checks.Check(((OperationCanceledException)e.InnerException).CancellationToken == source.Token, "another token");
    }
  }

  private static void Prompts() {
    int[] tokens = Checks.LongPrompt(model, 300);
    using (Session one = model.NewSession(policy))
    using (Session parts = model.NewSession(policy)) {
      one.Prefill(tokens);
      parts.Append(tokens.Take(100).ToArray());
      parts.Append(tokens.Skip(100).ToArray());
      Checks.Equal(300, parts.Kept(0, 0).Length);
      parts.Compress();
      Checks.Check(one.Kept(2, 1).SequenceEqual(parts.Kept(2, 1)), "the same is kept of parts");
      SessionStats stats = one.Stats();
      Checks.Equal("300 0 1 -1 300", string.Join(" ", stats.Prompt, stats.Answer, stats.Compactions, stats.StopToken,
                                                 stats.Tokens));
      Checks.Check(stats.CacheBytes < stats.CacheBytesFull && stats.Slots < stats.SlotsFull, "it is compressed");
      Checks.Check(stats.PrefillSeconds > 0 && stats.CompressSeconds > 0, "seconds");
      Checks.Check(one.Trim(16) > 0, "trim frees");
      Checks.Equal(1.0, one.Progress);
      one.Reset();
      Checks.Equal(0, one.Stats().Prompt);
      one.Cancel();
      Checks.Failing(Status.Cancelled, () => one.Prefill(tokens));
      one.Cancel();
      one.ClearCancel();
      one.Prefill(tokens);
    }
    using (Session full = model.NewSession(null, new SessionParams { MaxTokens = 40 })) {
      Checks.Failing(Status.ContextFull, () => full.Prefill(tokens.Take(41).ToArray()));
      full.Prefill(tokens.Take(40).ToArray());
      full.Step();
      Checks.Failing(Status.ContextFull, () => full.Step());
    }
    using (Session slide = model.NewSession(null, new SessionParams { MaxTokens = 40, OnFull = OnFull.Slide })) {
      slide.Prefill(tokens);
      Checks.Check(Checks.Text(slide, 60).Length > 0 && slide.Stats().Slots <= 24 * 41, "goes on and holds no more");
    }
  }

  private static void Spans() {
    int[] all = Checks.LongPrompt(model, 302), tokens = all.Skip(1).Take(300).ToArray();
    using (Session one = model.NewSession(policy))
    using (Session span = model.NewSession(policy))
    using (Session memory = model.NewSession(policy)) {
      one.Prefill(tokens);
      span.Append(new ReadOnlySpan<int>(all, 1, 100));
      span.Append(new ReadOnlyMemory<int>(all, 101, 100));
      span.Enqueue(new ReadOnlySpan<int>(all, 201, 100), false);
      span.Compress();
      Checks.Check(one.Kept(2, 1).SequenceEqual(span.Kept(2, 1)), "the same is kept of a span");
      CancellationTokenSource source = new CancellationTokenSource();
      memory.Prefill(new ReadOnlyMemory<int>(all, 1, 300), source.Token);
      Checks.Check(one.Logits().SequenceEqual(memory.Logits()), "logits after memory");
      memory.Reset();
      source.Cancel();
      Checks.Throwing<OperationCanceledException>(() => memory.Prefill(new ReadOnlyMemory<int>(all), source.Token));
      memory.Prefill(new ReadOnlySpan<int>(all, 1, 300));
      Checks.Check(one.Logits().SequenceEqual(memory.Logits()), "logits after a span");
      int[] draft = Library.DraftLookup(tokens);
      Checks.Check(draft.Length > 0 && draft.SequenceEqual(Library.DraftLookup(new ReadOnlySpan<int>(all, 1, 300))),
          "the same draft");
      int[] got = one.Step(draft);
      Checks.Check(got.SequenceEqual(memory.Step(new ReadOnlySpan<int>(draft))), "the same steps");
      Checks.Check(one.Step(new int[0]).SequenceEqual(memory.Step(default(ReadOnlySpan<int>))), "a draft of none");
      Checks.Failing(Status.Invalid, () => memory.Prefill(default(ReadOnlySpan<int>)));
    }
    int[] words = model.Tokenize(string.Concat(Enumerable.Repeat("word ", 5000)));
    Checks.Equal(model.Detokenize(words.Skip(3).ToArray()), model.Detokenize(new ReadOnlySpan<int>(words).Slice(3)));
    Checks.Equal("", model.Detokenize(default(ReadOnlySpan<int>)));
    IntPtr native = Marshal.AllocHGlobal(4 * words.Length);
    Marshal.Copy(words, 0, native, words.Length);
    Checks.Equal(model.Detokenize(words), DetokenizeAt(native, words.Length));
    Marshal.FreeHGlobal(native);
  }

  private static unsafe string DetokenizeAt(IntPtr at, int n) {
    return model.Detokenize(new ReadOnlySpan<int>(at.ToPointer(), n));
  }

  private static void Samplers() {
    Sampling warm = new Sampling { Temperature = 1, TopK = 50, TopP = 0.9f, MinP = 0.01f, RepeatPenalty = 1.1f,
                                   RepeatWindow = 32, Seed = 7 };
    string first;
    using (Session session = model.NewSession(policy, new SessionParams { Sampling = warm })) {
      session.Prefill(model.Tokenize(Checks.Story, TokenizeFlags.AddBos));
      first = Checks.Text(session, 16);
    }
    using (Session session = Checks.StoryOf(model, policy)) {
      session.SetSampling(warm);
      Checks.Equal(first, Checks.Text(session, 16));
    }
    using (Session session = Checks.StoryOf(model, policy)) {
      float[] logits = session.Logits(), same = new float[2048];
      Checks.Equal(2048, session.Logits(same));
      Checks.Check(logits.SequenceEqual(same), "logits");
      int best = Array.IndexOf(logits, logits.Max());
      session.SetLogitBias(new[] { best }, new[] { float.NegativeInfinity });
      int second;
      using (Session fork = session.Fork()) second = fork.Step();
      Checks.Check(second != best, "the bias forbids");
      session.SetLogitBias(new int[0], new float[0]);
      int[] mask = new int[2048 / 32];
      mask[best / 32] = 1 << best % 32;
      session.SetTokenMask(mask);
      Checks.Equal(best, session.Step());
      session.SetTokenMask(null);
      session.SetSampling(null);
      session.Accept(second);
      Checks.Equal(2, session.Stats().Answer);
    }
  }

  private static void Conversation() {
    using (Session session = model.NewSession(policy)) {
      Checks.Failing(Status.Unsupported, () => session.Say(Role.User, "Hello", SayFlags.Answer));
      session.SetTurnMarks(Role.User, "Q: ", "\n");
      session.SetTurnMarks(Role.Assistant, "A:", "\n");
      string answer = string.Concat(session.Ask("The code of Ada is 417. What is the code of Ada?", 8));
      Checks.Check(answer.Length > 0, "an answer");
      session.Say(Role.User, "");
      session.SetTurnMarks(Role.User, null, null);
    }
  }

  private static void Branches() {
    string file = Path.GetTempFileName();
    using (Session session = Checks.StoryOf(model, policy)) {
      byte[] saved = session.Save();
      session.Save(file);
      Checks.Check(saved.SequenceEqual(File.ReadAllBytes(file)), "file and bytes are the same");
      string wanted = Checks.Text(session, 10);
      using (Session one = model.Restore(saved))
      using (Session two = model.Restore(file)) {
        Checks.Equal(wanted, Checks.Text(one, 10));
        Checks.Equal(wanted, Checks.Text(two, 10));
      }
      File.Delete(file);
      saved[saved.Length / 2] ^= 1;
      Checks.Failing(Status.BadModel, () => model.Restore(saved));
      Checks.Failing(Status.Io, () => model.Restore(file));
    }
    int[] tokens = model.Tokenize(Checks.Story, TokenizeFlags.AddBos);
    using (Session session = model.NewSession()) {
      session.Prefill(tokens);
      using (Session fork = session.Fork()) {
        fork.Rewind(3);
        fork.Prefill(tokens.Skip(tokens.Length - 3).ToArray());
        Checks.Equal(Checks.Text(session, 8), Checks.Text(fork, 8));
      }
    }
  }

  private static void Batches() {
    using (Session one = Checks.StoryOf(model, policy))
    using (Session two = Checks.StoryOf(model, policy))
    using (Session three = model.NewSession(policy)) {
      three.Enqueue(Checks.LongPrompt(model, 300));
      int[] alone;
      using (Session fork = one.Fork()) alone = new[] { fork.Step(), fork.Step(), fork.Step() };
      Batch step = Batch.Step(new[] { one, two, three }, 100);
      Checks.Check(step.Tokens.SequenceEqual(new[] { alone[0], alone[0], Batch.Reading }), "each answers as alone");
      Checks.Check(step.Statuses.All(s => s == Status.Ok), "statuses");
      Checks.Check(three.Stats().PromptProgress < 1, "it is being read");
      float[] logits = new float[2 * 2048];
      Batch.Logits(new[] { one, two }, logits);
      Checks.Equal(alone[1], Array.IndexOf(logits, logits.Take(2048).Max()));
      Checks.Failing(Status.BufferTooSmall, () => Batch.Logits(new[] { one, two }, new float[2048]));
      Checks.Failing(Status.Busy, () => Batch.Step(new[] { one, one }));
      Checks.Failing(Status.Invalid, () => Batch.Step(new Session[0]));
    }
  }

  // The last that failed has the library's text, the others a sentence.
  private static void TextsOfABatch() {
    int[] tokens = model.Prompt(Checks.Story);
    SessionParams brief = new SessionParams { MaxTokens = tokens.Length };
    using (Session first = model.NewSession(null, brief))
    using (Session last = model.NewSession(null, brief))
    using (Session good = Checks.StoryOf(model))
    using (Session fresh = model.NewSession()) {
      foreach (Session full in new[] { first, last }) {
        full.Prefill(tokens);
        full.Step();
      }
      Batch step = Batch.Step(new[] { first, good, fresh, last });
      Checks.Equal("ContextFull Ok Invalid ContextFull", string.Join(" ", step.Statuses));
      Checks.Equal("the session holds max_tokens tokens", step.Messages[0]);
      Checks.Equal(null, step.Messages[1]);
      Checks.Check(step.Messages[2].Contains("no prompt"), step.Messages[2]);
      Checks.Equal("the session holds max_tokens=" + tokens.Length + " tokens", step.Messages[3]);
    }
  }

  private static void Log() {
    Library.StartLog(LogLevel.Info);
    Model.Open(Checks.Recall).Dispose();
    LogLine line = Library.PollLog();
    Checks.Equal(LogLevel.Info, line.Level);
    Checks.Check(line.Text.StartsWith("opened"), line.Text);
    while (Library.PollLog() != null) {
    }
    Library.StopLog();
    Model.Open(Checks.Recall).Dispose();
    Checks.Equal(null, Library.PollLog());
  }
}
