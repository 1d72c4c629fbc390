// Reads JSON as far as the scenario has it: objects are dictionaries, arrays lists, numbers double.
using System;
using System.Collections.Generic;
using System.Globalization;
using System.Text;

sealed class Json {
  private readonly string text;
  private int at;

  private Json(string text) { this.text = text; }

  internal static object Parse(string text) { return new Json(text).Value(); }

  private char Skip() {
    while (char.IsWhiteSpace(text[at])) ++at;
    return text[at];
  }

  private object Value() {
    switch (Skip()) {
      case '{': return Object();
      case '[': return Array();
      case '"': return String();
    }
    int begin = at;
    while (at < text.Length && "+-.eE0123456789".IndexOf(text[at]) >= 0) ++at;
    return double.Parse(text.Substring(begin, at - begin), CultureInfo.InvariantCulture);
  }

  private Dictionary<string, object> Object() {
    Dictionary<string, object> fields = new Dictionary<string, object>();
    for (++at; Skip() != '}';) {
      if (text[at] == ',') {
        ++at;
        Skip();
      }
      string name = String();
      if (Skip() != ':') throw new FormatException("no colon at " + at);
      ++at;
      fields[name] = Value();
    }
    ++at;
    return fields;
  }

  private List<object> Array() {
    List<object> items = new List<object>();
    for (++at; Skip() != ']';) {
      if (text[at] == ',') ++at;
      items.Add(Value());
    }
    ++at;
    return items;
  }

  private string String() {
    StringBuilder made = new StringBuilder();
    for (++at; text[at] != '"'; ++at) {
      char c = text[at];
      if (c == '\\') {
        c = text[++at];
        if (c == 'u') {
          c = (char)Convert.ToInt32(text.Substring(at + 1, 4), 16);
          at += 4;
        } else if ("ntr".IndexOf(c) >= 0) {
          c = "\n\t\r"["ntr".IndexOf(c)];
        }
      }
      made.Append(c);
    }
    ++at;
    return made.ToString();
  }
}
