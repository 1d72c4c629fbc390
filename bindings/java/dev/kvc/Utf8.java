package dev.kvc;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;

/** Text crosses the border as bytes of UTF-8. What Java calls UTF-8 in JNI is another encoding. */
final class Utf8 {
  private Utf8() {}

  /** The bytes of a text; half a surrogate pair is an error, as there is no such text. */
  static byte[] encode(String text, String what) {
    if (text == null) throw new NullPointerException(what);
    try {
      ByteBuffer bytes = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(text));
      byte[] exact = new byte[bytes.remaining()];
      bytes.get(exact);
      return exact;
    } catch (CharacterCodingException e) {
      throw new KvcException(Status.INVALID, what + ": half a surrogate pair is no text");
    }
  }

  /** The bytes of a name, path or spec, behind which C puts a NUL; null stays null. */
  static byte[] name(String text, String what) {
    if (text == null) return null;
    if (text.indexOf('\0') >= 0) throw new KvcException(Status.INVALID, what + " has a NUL in it");
    return encode(text, what);
  }

  static String decode(byte[] bytes, int n) {
    return new String(bytes, 0, n, StandardCharsets.UTF_8);
  }

  /** The text of a call that fills an array. */
  static String read(Filled.Call<byte[]> call) {
    byte[] bytes = Filled.array(1024, byte[]::new, call);
    return decode(bytes, bytes.length);
  }
}
