// Nanoseconds of a call that does nothing, and of a step: Bench.exe STORIES.kvc
using System;
using System.Diagnostics;
using System.Globalization;
using Kvc;

static class Bench {
  static void Main(string[] args) {
    Stopwatch watch = Stopwatch.StartNew();
    Model model = Model.Open(args[0]);
    double open = watch.Elapsed.TotalMilliseconds, call = 1e9, step = 1e9;
    Session session = model.NewSession();
    int[] prompt = model.Tokenize("Once upon a time", TokenizeFlags.AddBos);
    for (int round = 0; round < 20; ++round) {
      watch.Restart();
      for (int i = 0; i < 20000; ++i) GC.KeepAlive(session.Progress);
      call = Math.Min(call, watch.Elapsed.TotalMilliseconds * 1e6 / 20000);
      session.Reset();
      session.Prefill(prompt);
      watch.Restart();
      for (int i = 0; i < 200; ++i) session.Step();
      step = Math.Min(step, watch.Elapsed.TotalMilliseconds * 1e6 / 200);
    }
    Console.WriteLine(string.Format(CultureInfo.InvariantCulture, "{0:F0} {1:F0} {2:F1}", call, step, open));
  }
}
