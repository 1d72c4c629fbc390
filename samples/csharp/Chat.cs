// A conversation that may go on for ever: Chat.exe MODEL.kvc [POLICY [TOKENS]], a turn a line. Ctrl-C stops an answer.
//
// mcs -r:Kvc.dll Chat.cs && mono Chat.exe model.kvc snapkv:budget=512
using System;
using System.Collections.Generic;
using System.IO;
using System.Text;
using Kvc;

static class Chat {
  static int Main(string[] args) {
    if (args.Length < 1) {
      Console.Error.WriteLine("usage: Chat MODEL.kvc [POLICY [TOKENS]]");
      return 2;
    }
    try {
      Talk(args);
    } catch (KvcException e) {
      Console.Error.WriteLine("Chat: " + e.Message);
      return 1;
    }
    return 0;
  }

  static void Talk(string[] args) {
    int maxTokens = args.Length > 2 ? int.Parse(args[2]) : 512;
    TextReader input = new StreamReader(Console.OpenStandardInput(), new UTF8Encoding(false));
    TextWriter output = new StreamWriter(Console.OpenStandardOutput(), new UTF8Encoding(false)) { AutoFlush = true };
    // Past the trained context old entries leave, and what the policy keeps of every turn stays within its budget.
    SessionParams endless = new SessionParams { OnFull = OnFull.Slide };
    using (Model model = Model.Open(args[0]))
    using (Policy policy = new Policy(args.Length > 1 ? args[1] : "full"))
    using (Session session = model.NewSession(policy, endless)) {
      Console.CancelKeyPress += (sender, key) => {
        key.Cancel = true; // the process goes on
        session.Cancel();
      };
      for (string line; (line = input.ReadLine()) != null;) {
        session.ClearCancel(); // of a Ctrl-C between two answers
        try {
          foreach (string piece in Ask(session, line, maxTokens)) output.Write(piece);
        } catch (KvcException e) when (e.Status == Status.Cancelled) {
        }
        output.Write("\n");
      }
    }
  }

  // A model that was not trained on conversations has no marks for turns: it goes on with what the user writes.
  static IEnumerable<string> Ask(Session session, string line, int maxTokens) {
    try {
      return session.Ask(line, maxTokens);
    } catch (KvcException e) when (e.Status == Status.Unsupported) {
      session.SetTurnMarks(Role.User, "", "");
      return session.Ask(line, maxTokens);
    }
  }
}
