import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Reads JSON as far as the scenario has it: objects are maps, arrays lists, numbers Double. */
final class Json {
  private final String text;
  private int at;

  private Json(String text) {
    this.text = text;
  }

  static Object parse(String text) {
    return new Json(text).value();
  }

  private char skip() {
    while (Character.isWhitespace(text.charAt(at))) ++at;
    return text.charAt(at);
  }

  private Object value() {
    switch (skip()) {
      case '{':
        return object();
      case '[':
        return array();
      case '"':
        return string();
      default:
        int begin = at;
        while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) ++at;
        return Double.valueOf(text.substring(begin, at));
    }
  }

  private Map<String, Object> object() {
    Map<String, Object> fields = new LinkedHashMap<>();
    for (++at; skip() != '}'; ) {
      if (text.charAt(at) == ',') {
        ++at;
        skip();
      }
      String name = string();
      if (skip() != ':') throw new IllegalArgumentException("no colon at " + at);
      ++at;
      fields.put(name, value());
    }
    ++at;
    return fields;
  }

  private List<Object> array() {
    List<Object> items = new ArrayList<>();
    for (++at; skip() != ']'; ) {
      if (text.charAt(at) == ',') ++at;
      items.add(value());
    }
    ++at;
    return items;
  }

  private String string() {
    StringBuilder out = new StringBuilder();
    for (++at; text.charAt(at) != '"'; ++at) {
      char c = text.charAt(at);
      if (c == '\\') {
        c = text.charAt(++at);
        if (c == 'u') {
          c = (char) Integer.parseInt(text.substring(at + 1, at + 5), 16);
          at += 4;
        } else if ("ntr".indexOf(c) >= 0) {
          c = "\n\t\r".charAt("ntr".indexOf(c));
        }
      }
      out.append(c);
    }
    ++at;
    return out.toString();
  }
}
