// Reads a document once, keeps a compressed cache of it, and answers any number of questions from that: AskDocument.exe
// MODEL.kvc POLICY DOCUMENT QUESTION...
//
// mcs -r:Kvc.dll AskDocument.cs
// mono AskDocument.exe recall.kvc cokv-document:budget=24 text.txt "The code of Zachary is"
using System;
using System.IO;
using System.Linq;
using System.Text;
using Kvc;

static class AskDocument {
  static int Main(string[] args) {
    if (args.Length < 4) {
      Console.Error.WriteLine("usage: AskDocument MODEL.kvc POLICY DOCUMENT QUESTION...");
      return 2;
    }
    try {
      Ask(args);
    } catch (KvcException e) {
      Console.Error.WriteLine("AskDocument: " + e.Message);
      return 1;
    }
    return 0;
  }

  static void Ask(string[] args) {
    TextWriter output = new StreamWriter(Console.OpenStandardOutput(), new UTF8Encoding(false)) { AutoFlush = true };
    using (Model model = Model.Open(args[0]))
    using (Policy policy = new Policy(args[1]))
    using (Session document = model.NewSession(policy)) {
      document.Prefill(model.Prompt(File.ReadAllText(args[2])));
      SessionStats stats = document.Stats();
      output.Write("{0} tokens in {1} KiB instead of {2}\n", stats.Prompt, stats.CacheBytes >> 10,
                   stats.CacheBytesFull >> 10);
      foreach (string question in args.Skip(3)) {
        // A fork shares the cache of the document, and what is asked of one the others do not see.
        using (Session fork = document.Fork()) {
          fork.Append(model.Tokenize(" " + question, TokenizeFlags.Continue));
          output.Write(question);
          foreach (string piece in fork.Generate(6).TakeWhile(piece => !piece.Contains("."))) output.Write(piece);
          output.Write("\n");
        }
      }
    }
  }
}
